package ticket

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/go-relock/relock/event"
)

// This file has the form of a signed ticket: a JSON Web Token (RFC 7519) of three parts in base64,
// the header, the claims, and the signature of both.

const (
	// typ is the type of a signed ticket, so that no other token of an issuer is taken for a ticket.
	typ = "relock-ticket+jwt"
	// method is the one method of signatures.
	method = "EdDSA"
)

// header says how a token is signed. A header that Signer does not write is refused.
type header struct {
	Type   string `json:"typ"`
	Method string `json:"alg"`
	Key    string `json:"kid"`
	// Extensions are what a reader must know, or refuse the token (RFC 7515, section 4.1.11).
	Extensions json.RawMessage `json:"crit,omitempty"`
}

// claims are what is signed.
type claims struct {
	Issuer    string        `json:"iss"`
	Audience  string        `json:"aud"`
	ID        string        `json:"jti"` // of the ticket
	IssuedAt  int64         `json:"iat"` // this and the next ones in seconds since 1970
	NotBefore int64         `json:"nbf"`
	Expires   int64         `json:"exp"`
	Use       string        `json:"use"`
	Lock      string        `json:"lock"`
	Mode      event.Mode    `json:"mode"`
	Hold      string        `json:"hold"`
	Token     int64         `json:"token"`
	TTL       time.Duration `json:"ttl"`
	Delay     time.Duration `json:"delay"`
}

// encoding refuses bits behind the last byte, so that a token has one text.
var encoding = base64.RawURLEncoding.Strict()

// sign returns the text of a token.
func sign(h header, c claims, key ed25519.PrivateKey) (string, error) {
	head, err := json.Marshal(h)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	text := encoding.EncodeToString(head) + "." + encoding.EncodeToString(body)
	return text + "." + encoding.EncodeToString(ed25519.Sign(key, []byte(text))), nil
}

// token is a token that was read. Nothing in it is known to be true before isBy.
type token struct {
	header    header
	claims    claims
	text      string // that is signed
	signature []byte
}

// parse reads a token whose signature nobody has checked yet. The text of an error has no part of
// the token.
func parse(s string) (t token, err error) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return t, because(ErrSignature, "it is malformed")
	}
	t.text = parts[0] + "." + parts[1]
	if t.signature, err = encoding.DecodeString(parts[2]); err != nil || !decode(parts[0], &t.header) || !decode(parts[1], &t.claims) {
		return t, because(ErrSignature, "it is malformed")
	}
	if t.header.Type != typ || t.header.Method != method || t.header.Extensions != nil {
		return t, because(ErrSignature, "the type, the method of its signature, or an extension is unknown")
	}
	return t, nil
}

// decode reads a part of a token.
func decode(part string, to any) bool {
	text, err := encoding.DecodeString(part)
	return err == nil && json.Unmarshal(text, to) == nil
}

// isBy says whether the owner of a key has signed the token.
func (t token) isBy(key ed25519.PublicKey) bool {
	return ed25519.Verify(key, []byte(t.text), t.signature)
}
