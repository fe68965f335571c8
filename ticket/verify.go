package ticket

import (
	"crypto/ed25519"
	"slices"
	"time"

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
	return v, nil
}

// Verify returns the ticket of a text that a known issuer has signed for this service, for [Borrow]
// or [Accept], according to its Use. Verify asks no store: whether the ticket was used, and whether
// its hold is there, Borrow and Accept find out.
//
// Errors: [ErrMissing] for an empty text, [ErrSignature], [ErrExpired], [ErrAudience], each of
// which matches [relock.ErrTicket].
func (v *Verifier) Verify(s Signed) (Ticket, error) {
	switch {
	case s == "":
		return Ticket{}, ErrMissing
	case len(s) > maxLength:
		return Ticket{}, because(ErrSignature, "it is too long")
	}
	signed, err := parse(s.Text())
	if err != nil {
		return Ticket{}, err
	}
	c := signed.claims
	key, isKnown := v.issuers[c.Issuer][signed.header.Key]
	switch {
	case !isKnown || !signed.isBy(key):
		return Ticket{}, because(ErrSignature, "the signature is wrong, or its issuer or key is unknown")
	case c.Audience != "" && c.Audience != v.audience:
		return Ticket{}, ErrAudience
	}
	t := Ticket{Use: c.Use, ID: c.ID, Lock: c.Lock, Hold: c.Hold, Token: c.Token, TTL: c.TTL, Delay: c.Delay, Expires: time.Unix(c.Expires, 0)}
	now := time.Now()
	switch {
	case !isWhole(t), c.Audience == "", c.Mode != event.ModeExclusive, c.IssuedAt == 0, c.NotBefore == 0, c.Expires == 0:
		return Ticket{}, because(ErrSignature, "a claim is missing, or wrong")
	case !now.Add(-v.leeway).Before(t.Expires):
		return Ticket{}, because(ErrExpired, "it has expired")
	case now.Add(v.leeway).Before(time.Unix(max(c.IssuedAt, c.NotBefore), 0)):
		return Ticket{}, because(ErrExpired, "it was issued in the future, by the clock of this process")
	case t.Expires.After(now.Add(v.maxLife + v.leeway)):
		return Ticket{}, because(ErrSignature, "it expires too late, see WithMaxLife")
	}
	return t, nil
}
