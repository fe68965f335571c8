package ticket

import (
	"crypto/ed25519"
	"errors"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/go-relock/relock/event"
)

// Keys are the public keys of an issuer, by the names of the keys. An issuer that changes its key
// has two for a while: the next key is added to all verifiers, then the signers change, and when
// the tickets of the last signer have expired, the former key goes.
type Keys map[string]ed25519.PublicKey

// Issuers are the services whose tickets are accepted, by their names.
type Issuers map[string]Keys

const (
	// DefaultMaxLife is the longest time until the expiry of a ticket, see [WithMaxLife].
	DefaultMaxLife = 10 * time.Minute
	// DefaultLeeway is the difference of two clocks that is forgiven, see [WithLeeway].
	DefaultLeeway = 5 * time.Second
	// maxLength is above each ticket: the key of a lock has at most 2 KiB, of which JSON and base64
	// make at most eight times as many.
	maxLength = 32 << 10
)

// Option is a setting of [NewVerifier].
type Option func(*Verifier) error

// WithMaxLife sets how far ahead the expiry of a ticket may be. The default is [DefaultMaxLife].
func WithMaxLife(d time.Duration) Option {
	return func(v *Verifier) error {
		if d < time.Second {
			return invalid("WithMaxLife(%s): must be at least a second", d)
		}
		v.maxLife = d
		return nil
	}
}

// WithLeeway sets the difference between the clock of an issuer and the clock of this process that
// is forgiven, at most a minute. The default is [DefaultLeeway]. The store, which has the last word
// about the expiry, forgives nothing: it compares with its own clock.
func WithLeeway(d time.Duration) Option {
	return func(v *Verifier) error {
		if d < 0 || d > time.Minute {
			return invalid("WithLeeway(%s): must be from 0 to a minute", d)
		}
		v.leeway = d
		return nil
	}
}

// Verifier checks the signed tickets that a service gets. A Verifier is immutable, and safe for
// concurrent use. Make a new Verifier when the keys change.
type Verifier struct {
	audience        string
	issuers         Issuers
	maxLife, leeway time.Duration
	parser          *jwt.Parser
}

// NewVerifier returns the Verifier of a service. The audience is the name under which issuers sign
// for this service, and for no other. Errors: [relock.ErrInvalid].
func NewVerifier(audience string, issuers Issuers, options ...Option) (*Verifier, error) {
	v := &Verifier{audience: audience, issuers: make(Issuers), maxLife: DefaultMaxLife, leeway: DefaultLeeway}
	if audience == "" || len(issuers) == 0 {
		return nil, invalid("NewVerifier: needs the name of this service, and the keys of an issuer")
	}
	for issuer, keys := range issuers {
		if issuer == "" || len(keys) == 0 {
			return nil, invalid("NewVerifier: an issuer has a name and a key")
		}
		v.issuers[issuer] = make(Keys)
		for id, key := range keys {
			if id == "" || len(key) != ed25519.PublicKeySize {
				return nil, invalid("NewVerifier: key %q of issuer %q: a key has a name, and %d bytes", id, issuer, ed25519.PublicKeySize)
			}
			v.issuers[issuer][id] = slices.Clone(key)
		}
	}
	for _, option := range options {
		if err := option(v); err != nil {
			return nil, err
		}
	}
	v.parser = jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(), jwt.WithAudience(audience),
		jwt.WithLeeway(v.leeway), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
	)
	return v, nil
}

// Verify returns the ticket of a text that a known issuer has signed for this service, for [Borrow]
// or [Accept], according to its Use. Verify asks no store: whether the ticket was used, and whether
// its hold is there, Borrow and Accept find out.
//
// Errors: [ErrMissing] for an empty text, [ErrSignature], [ErrExpired], [ErrAudience], each of
// which matches [relock.ErrTicket].
func (v *Verifier) Verify(s Signed) (Ticket, error) {
	if s == "" {
		return Ticket{}, ErrMissing
	}
	if len(s) > maxLength {
		return Ticket{}, because(ErrSignature, "it is too long")
	}
	var c claims
	if _, err := v.parser.ParseWithClaims(s.Text(), &c, v.key); err != nil {
		return Ticket{}, reason(err)
	}
	t := Ticket{Use: c.Use, ID: c.ID, Lock: c.Lock, Hold: c.Hold, Token: c.Token, TTL: c.TTL, Delay: c.Delay}
	switch {
	case !isWhole(t), c.Mode != event.ModeExclusive, c.IssuedAt == nil, c.NotBefore == nil, len(c.Audience) != 1:
		return Ticket{}, because(ErrSignature, "a claim is missing, or wrong")
	case time.Until(c.ExpiresAt.Time) > v.maxLife+v.leeway:
		return Ticket{}, because(ErrSignature, "it expires too late, see WithMaxLife")
	}
	t.Expires = c.ExpiresAt.Time
	return t, nil
}

var errKey = errors.New("no such key")

// key returns the key of a ticket whose claims nobody has checked yet.
func (v *Verifier) key(t *jwt.Token) (any, error) {
	id, _ := t.Header["kid"].(string)
	if t.Header["typ"] != typ || t.Header["crit"] != nil { // an extension that RFC 7515 has us know, or refuse
		return nil, errKey
	}
	key, is := v.issuers[t.Claims.(*claims).Issuer][id]
	if !is {
		return nil, errKey
	}
	return key, nil
}

// reason returns the error for an error of the parser, whose text may have parts of the ticket.
func reason(err error) error {
	switch {
	case errors.Is(err, errKey):
		return because(ErrSignature, "the issuer, its key, the type, or an extension is unknown")
	case errors.Is(err, jwt.ErrTokenMalformed):
		return because(ErrSignature, "it is malformed")
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenUnverifiable):
		return because(ErrSignature, "the signature, or its method, is wrong")
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return because(ErrSignature, "a claim is missing, or wrong")
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return ErrAudience
	case errors.Is(err, jwt.ErrTokenExpired):
		return because(ErrExpired, "it has expired")
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return because(ErrExpired, "it was issued in the future, by the clock of this process")
	default:
		return because(ErrSignature, "a claim is wrong")
	}
}
