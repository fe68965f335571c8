package ticket

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/go-relock/relock/event"
)

// Signed is the text of a signed ticket. The text is a secret until the ticket is used or has
// expired. The formats of package fmt and package log/slog show "[signed ticket]" in its place, and
// encoding/json refuses it: send Text. Package fmt does show the text of a Signed in an unexported
// field of a structure: do not log such a structure.
type Signed string

const redacted = "[signed ticket]"

// Text returns the text of the ticket, for its way to another service.
func (s Signed) Text() string { return string(s) }

// String returns "[signed ticket]".
func (Signed) String() string { return redacted }

// GoString returns "[signed ticket]".
func (Signed) GoString() string { return redacted }

// LogValue returns "[signed ticket]".
func (Signed) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns an error, as a ticket in a structure is often logged.
func (Signed) MarshalText() ([]byte, error) {
	return nil, errors.New("a ticket.Signed is not marshaled: send its Text")
}

// typ is the type in the header of a signed ticket, so that no other token of an issuer is taken
// for a ticket.
const typ = "relock-ticket+jwt"

// claims are what is signed.
type claims struct {
	jwt.RegisteredClaims               // jti is the ID of the ticket
	Use                  string        `json:"use"`
	Lock                 string        `json:"lock"`
	Mode                 event.Mode    `json:"mode"`
	Hold                 string        `json:"hold"`
	Token                int64         `json:"token"`
	TTL                  time.Duration `json:"ttl"`
	Delay                time.Duration `json:"delay"`
}

// Signer signs the tickets of one service. A Signer is immutable, and safe for concurrent use.
type Signer struct {
	issuer, keyID string
	key           *ed25519.PrivateKey // package fmt does not follow a pointer in a structure
}

// NewSigner returns the Signer of a service. Verifiers find the public key by the names of the
// issuer and of the key. Errors: [relock.ErrInvalid].
func NewSigner(issuer, keyID string, key ed25519.PrivateKey) (*Signer, error) {
	switch {
	case issuer == "" || keyID == "":
		return nil, invalid("NewSigner: an issuer and a key have names")
	case len(key) != ed25519.PrivateKeySize:
		return nil, invalid("NewSigner: this is no private key of Ed25519, which has %d bytes", ed25519.PrivateKeySize)
	}
	key = slices.Clone(key)
	return &Signer{issuer: issuer, keyID: keyID, key: &key}, nil
}

// String returns the name of the issuer, without the key.
func (s *Signer) String() string { return "signer " + s.issuer }

// GoString is [Signer.String].
func (s *Signer) GoString() string { return s.String() }

// Sign signs a ticket for one service, the audience of its [Verifier]. The expiry is signed in
// whole seconds, rounded down.
//
// A ticket of [ToResume] has no expiry, as it is meant for the store of the program
// that has made it. Set [Ticket.Expires] to sign one.
//
// Errors: [relock.ErrInvalid] for an audience without a name, a ticket without an expiry, a Ticket
// that no function of this package has made, and a lock whose name is not in UTF-8.
func (s *Signer) Sign(t Ticket, audience string) (Signed, error) {
	switch {
	case audience == "":
		return "", invalid("Sign: an audience has a name")
	case !isWhole(t):
		return "", invalid("Sign: the ticket was not made by Lend, HandOff or ToResume")
	case !utf8.ValidString(t.Lock):
		return "", invalid("Sign: the name of the lock is not in UTF-8, and so cannot be in a claim")
	case t.Expires.IsZero():
		return "", invalid("Sign: a %s ticket has no expiry; set Expires before it is signed", t.Use)
	}
	now := jwt.NewNumericDate(time.Now())
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: s.issuer, Audience: jwt.ClaimStrings{audience}, ID: t.ID,
			IssuedAt: now, NotBefore: now, ExpiresAt: jwt.NewNumericDate(t.Expires),
		},
		Use: t.Use, Lock: t.Lock, Mode: event.ModeExclusive, Hold: t.Hold, Token: t.Token, TTL: t.TTL, Delay: t.Delay,
	})
	token.Header["typ"], token.Header["kid"] = typ, s.keyID
	text, err := token.SignedString(*s.key)
	if err != nil {
		return "", err
	}
	return Signed(text), nil
}

// isWhole says whether each field of a ticket but its expiry has a value. The rest is checked by
// Borrow and Accept.
func isWhole(t Ticket) bool {
	isUse := t.Use == UseLoan || t.Use == UseHandOff || t.Use == UseResume
	return isUse && t.ID != "" && t.Lock != "" && t.Hold != "" && t.Token > 0 && t.TTL > 0 && t.Delay >= 0
}
