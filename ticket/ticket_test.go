package ticket_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/ticket"
)

// keyOf returns the private key with a number.
func keyOf(n byte) ed25519.PrivateKey {
	seed := [ed25519.SeedSize]byte{n}
	return ed25519.NewKeyFromSeed(seed[:])
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// The issuer orders signs for the service shipping, with the key k1.
func newSigner(t testing.TB) *ticket.Signer {
	t.Helper()
	s, err := ticket.NewSigner("orders", "k1", keyOf(1))
	require.NoError(t, err)
	return s
}

func newVerifier(t testing.TB, options ...ticket.Option) *ticket.Verifier {
	t.Helper()
	v, err := ticket.NewVerifier("shipping", ticket.Issuers{"orders": {"k1": publicOf(keyOf(1))}}, options...)
	require.NoError(t, err)
	return v
}

func loan() ticket.Ticket {
	return ticket.Ticket{
		Use: ticket.UseLoan, ID: uuid.NewString(), Lock: "relock:{orders:7}", Hold: "c:1:1", Token: 1_790_000_000_000_001,
		TTL: 30 * time.Second, Delay: time.Second, Expires: time.Now().Add(ticket.Life),
	}
}

func TestASignedTicketIsTheTicket(t *testing.T) {
	for _, use := range []string{ticket.UseLoan, ticket.UseHandOff, ticket.UseResume} {
		want := loan()
		want.Use = use
		signed, err := newSigner(t).Sign(want, "shipping")
		require.NoError(t, err)
		got, err := newVerifier(t).Verify(signed)
		require.NoError(t, err)
		want.Expires = want.Expires.Truncate(time.Second)
		require.True(t, want.Expires.Equal(got.Expires))
		got.Expires = want.Expires
		require.Equal(t, want, got)
	}
}

// token makes the text of a token by hand. sign gets what is signed.
func token(t testing.TB, header, claims map[string]any, sign func(text string) []byte) ticket.Signed {
	t.Helper()
	part := func(v any) string {
		content, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(content)
	}
	text := part(header) + "." + part(claims)
	return ticket.Signed(text + "." + base64.RawURLEncoding.EncodeToString(sign(text)))
}

func with(key ed25519.PrivateKey) func(string) []byte {
	return func(text string) []byte { return ed25519.Sign(key, []byte(text)) }
}

func withHMAC(secret []byte) func(string) []byte {
	return func(text string) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
}

// fields returns the header and the claims of a signed ticket.
func fields(t testing.TB, s ticket.Signed) (header, claims map[string]any) {
	t.Helper()
	parts := strings.Split(s.Text(), ".")
	require.Len(t, parts, 3)
	for i, to := range []*map[string]any{&header, &claims} {
		content, err := base64.RawURLEncoding.DecodeString(parts[i])
		require.NoError(t, err)
		decoder := json.NewDecoder(strings.NewReader(string(content)))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(to))
	}
	return header, claims
}

func TestForgedTicketsAreRefused(t *testing.T) {
	good, err := newSigner(t).Sign(loan(), "shipping")
	require.NoError(t, err)
	header, claims := fields(t, good)
	v := newVerifier(t)
	_, err = v.Verify(token(t, header, claims, with(keyOf(1))))
	require.NoError(t, err, "the forgeries below differ from this token in one thing")

	public := publicOf(keyOf(1))
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	head := func(name string, value any) map[string]any {
		changed := maps.Clone(header)
		changed[name] = value
		return changed
	}
	claim := func(name string, value any) map[string]any {
		changed := maps.Clone(claims)
		changed[name] = value
		return changed
	}
	without := func(name string) map[string]any {
		changed := maps.Clone(claims)
		delete(changed, name)
		return changed
	}
	nothing := func(string) []byte { return nil }
	parts := strings.Split(good.Text(), ".")
	tampered := func(name string, value any) ticket.Signed { // with the signature of the good ticket
		changed := strings.Split(token(t, header, claim(name, value), nothing).Text(), ".")
		return ticket.Signed(changed[0] + "." + changed[1] + "." + parts[2])
	}
	now := time.Now()
	forged := map[string]struct {
		token ticket.Signed
		want  error
	}{
		"none":                            {token(t, head("alg", "none"), claims, nothing), ticket.ErrSignature},
		"None":                            {token(t, head("alg", "None"), claims, nothing), ticket.ErrSignature},
		"none with a signature":           {token(t, head("alg", "none"), claims, with(keyOf(1))), ticket.ErrSignature},
		"no method":                       {token(t, head("alg", nil), claims, with(keyOf(1))), ticket.ErrSignature},
		"HS256 with the public key":       {token(t, head("alg", "HS256"), claims, withHMAC(public)), ticket.ErrSignature},
		"HS256 with the public key, DER":  {token(t, head("alg", "HS256"), claims, withHMAC(der)), ticket.ErrSignature},
		"HS256 with the public key, PEM":  {token(t, head("alg", "HS256"), claims, withHMAC(asPEM)), ticket.ErrSignature},
		"EdDSA with HMAC":                 {token(t, header, claims, withHMAC(public)), ticket.ErrSignature},
		"RS256":                           {token(t, head("alg", "RS256"), claims, with(keyOf(1))), ticket.ErrSignature},
		"no signature":                    {token(t, header, claims, nothing), ticket.ErrSignature},
		"two parts":                       {ticket.Signed(parts[0] + "." + parts[1]), ticket.ErrSignature},
		"four parts":                      {good + ".x", ticket.ErrSignature},
		"no JSON":                         {"YQ.YQ." + ticket.Signed(parts[2]), ticket.ErrSignature},
		"too long":                        {good + ticket.Signed(strings.Repeat("A", 40_000)), ticket.ErrSignature},
		"nothing":                         {"", ticket.ErrMissing},
		"another key":                     {token(t, header, claims, with(keyOf(2))), ticket.ErrSignature},
		"another name of the key":         {token(t, head("kid", "k2"), claims, with(keyOf(1))), ticket.ErrSignature},
		"no name of the key":              {token(t, head("kid", nil), claims, with(keyOf(1))), ticket.ErrSignature},
		"a key in the header":             {token(t, head("jwk", map[string]any{"kty": "OKP", "x": publicOf(keyOf(2))}), claims, with(keyOf(2))), ticket.ErrSignature},
		"another type":                    {token(t, head("typ", "JWT"), claims, with(keyOf(1))), ticket.ErrSignature},
		"an extension":                    {token(t, head("crit", []string{"b64"}), claims, with(keyOf(1))), ticket.ErrSignature},
		"another issuer":                  {token(t, header, claim("iss", "billing"), with(keyOf(1))), ticket.ErrSignature},
		"another audience":                {token(t, header, claim("aud", "billing"), with(keyOf(1))), ticket.ErrAudience},
		"another audience, expired":       {token(t, header, func() map[string]any { c := claim("aud", "billing"); c["exp"] = 1; return c }(), with(keyOf(1))), ticket.ErrAudience},
		"two audiences":                   {token(t, header, claim("aud", []string{"shipping", "billing"}), with(keyOf(1))), ticket.ErrSignature},
		"tampered lock":                   {tampered("lock", "relock:{orders:8}"), ticket.ErrSignature},
		"tampered use":                    {tampered("use", ticket.UseHandOff), ticket.ErrSignature},
		"tampered ID":                     {tampered("jti", uuid.NewString()), ticket.ErrSignature},
		"tampered expiry":                 {tampered("exp", now.Add(8*time.Minute).Unix()), ticket.ErrSignature},
		"tampered audience":               {tampered("aud", "shipping"), ticket.ErrSignature},
		"expired":                         {token(t, header, claim("exp", now.Add(-time.Minute).Unix()), with(keyOf(1))), ticket.ErrExpired},
		"not valid yet":                   {token(t, header, claim("nbf", now.Add(time.Minute).Unix()), with(keyOf(1))), ticket.ErrExpired},
		"issued in the future":            {token(t, header, claim("iat", now.Add(time.Minute).Unix()), with(keyOf(1))), ticket.ErrExpired},
		"expiry too far ahead":            {token(t, header, claim("exp", now.Add(11*time.Minute).Unix()), with(keyOf(1))), ticket.ErrSignature},
		"expiry beyond the end of time":   {token(t, header, claim("exp", 1e300), with(keyOf(1))), ticket.ErrExpired},
		"expiry at the end of int64":      {token(t, header, claim("exp", int64(1<<62)), with(keyOf(1))), ticket.ErrSignature},
		"expiry that is a text":           {token(t, header, claim("exp", "tomorrow"), with(keyOf(1))), ticket.ErrSignature},
		"another use":                     {token(t, header, claim("use", "x"), with(keyOf(1))), ticket.ErrSignature},
		"another mode":                    {token(t, header, claim("mode", event.ModeShared), with(keyOf(1))), ticket.ErrSignature},
		"a token below 1":                 {token(t, header, claim("token", 0), with(keyOf(1))), ticket.ErrSignature},
		"a token that is no whole number": {token(t, header, claim("token", 1.5), with(keyOf(1))), ticket.ErrSignature},
		"a negative delay":                {token(t, header, claim("delay", -1), with(keyOf(1))), ticket.ErrSignature},
	}
	for _, name := range []string{"iss", "aud", "jti", "iat", "nbf", "exp", "use", "lock", "mode", "hold", "token", "ttl"} {
		forged["without "+name] = struct {
			token ticket.Signed
			want  error
		}{token(t, header, without(name), with(keyOf(1))), ticket.ErrSignature}
	}
	for name, f := range forged {
		got, err := v.Verify(f.token)
		require.ErrorIs(t, err, f.want, name)
		require.ErrorIs(t, err, relock.ErrTicket, name)
		require.Zero(t, got, name)
		for _, other := range []error{ticket.ErrMissing, ticket.ErrSignature, ticket.ErrExpired, ticket.ErrAudience} {
			require.Equal(t, errors.Is(f.want, other), strings.HasPrefix(err.Error(), other.Error()), "%s: %s", name, err)
		}
		for _, secret := range append(parts, "orders", "k1", "billing", "k2", "c:1:1") {
			require.NotContains(t, strings.TrimPrefix(err.Error(), f.want.Error()), secret, name)
		}
	}
}

// Each character of a ticket is signed: no other text is the same ticket.
func TestATicketWithOneOtherCharacterIsRefused(t *testing.T) {
	good, err := newSigner(t).Sign(loan(), "shipping")
	require.NoError(t, err)
	v := newVerifier(t)
	for i := range good {
		for _, other := range []byte("AB.=") {
			if good[i] == other {
				continue
			}
			_, err := v.Verify(good[:i] + ticket.Signed(other) + good[i+1:])
			require.ErrorIs(t, err, ticket.ErrSignature, "character %d is %q", i, other)
		}
	}
}

func TestTheTimeOfATicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := loan()
		one.Expires = time.Now().Add(time.Minute)
		signed, err := newSigner(t).Sign(one, "shipping")
		require.NoError(t, err)
		strict, lenient := newVerifier(t, ticket.WithLeeway(0)), newVerifier(t)
		after := func(d time.Duration, want error, v *ticket.Verifier) {
			t.Helper()
			time.Sleep(d) // in a synctest bubble
			_, err := v.Verify(signed)
			require.ErrorIs(t, err, want)
		}
		after(time.Minute-time.Second, nil, strict)
		after(time.Second, ticket.ErrExpired, strict)
		after(ticket.DefaultLeeway-time.Second, nil, lenient)
		after(time.Second, ticket.ErrExpired, lenient)
	})
}

func TestTheLongestLife(t *testing.T) {
	one := loan()
	one.Expires = time.Now().Add(time.Hour)
	signed, err := newSigner(t).Sign(one, "shipping")
	require.NoError(t, err)
	_, err = newVerifier(t).Verify(signed)
	require.ErrorIs(t, err, ticket.ErrSignature)
	require.ErrorContains(t, err, "WithMaxLife")
	_, err = newVerifier(t, ticket.WithMaxLife(time.Hour)).Verify(signed)
	require.NoError(t, err)
}

func TestAKeyIsChangedWithoutAGap(t *testing.T) {
	former := newSigner(t)
	next, err := ticket.NewSigner("orders", "k2", keyOf(2))
	require.NoError(t, err)
	both, err := ticket.NewVerifier("shipping", ticket.Issuers{"orders": {"k1": publicOf(keyOf(1)), "k2": publicOf(keyOf(2))}})
	require.NoError(t, err)
	after, err := ticket.NewVerifier("shipping", ticket.Issuers{"orders": {"k2": publicOf(keyOf(2))}})
	require.NoError(t, err)
	for _, s := range []*ticket.Signer{former, next} {
		signed, err := s.Sign(loan(), "shipping")
		require.NoError(t, err)
		_, err = both.Verify(signed)
		require.NoError(t, err)
		_, err = after.Verify(signed)
		require.Equal(t, s == former, err != nil)
	}
}

func TestAKeyIsOfItsIssuerOnly(t *testing.T) {
	v, err := ticket.NewVerifier("shipping", ticket.Issuers{"orders": {"k1": publicOf(keyOf(1))}, "billing": {"k2": publicOf(keyOf(2))}})
	require.NoError(t, err)
	for _, issuer := range []string{"orders", "billing"} {
		for n, id := range []string{"k1", "k2"} {
			s, err := ticket.NewSigner(issuer, id, keyOf(byte(n+1)))
			require.NoError(t, err)
			signed, err := s.Sign(loan(), "shipping")
			require.NoError(t, err)
			_, err = v.Verify(signed)
			require.Equal(t, (issuer == "orders") == (id == "k1"), err == nil, "%s %s", issuer, id)
		}
	}
}

func TestTheKeysOfAVerifierAreItsOwn(t *testing.T) {
	public := publicOf(keyOf(1))
	keys := ticket.Keys{"k1": append(ed25519.PublicKey(nil), public...)}
	v, err := ticket.NewVerifier("shipping", ticket.Issuers{"orders": keys})
	require.NoError(t, err)
	clear(keys["k1"])
	keys["k2"] = publicOf(keyOf(2))
	signed, err := newSigner(t).Sign(loan(), "shipping")
	require.NoError(t, err)
	_, err = v.Verify(signed)
	require.NoError(t, err)
}

func TestWhatCannotBeSigned(t *testing.T) {
	s := newSigner(t)
	_, err := s.Sign(loan(), "")
	require.ErrorIs(t, err, relock.ErrInvalid)
	for what, change := range map[string]func(*ticket.Ticket){
		"no use":        func(t *ticket.Ticket) { t.Use = "" },
		"no ID":         func(t *ticket.Ticket) { t.ID = "" },
		"no lock":       func(t *ticket.Ticket) { t.Lock = "" },
		"no hold":       func(t *ticket.Ticket) { t.Hold = "" },
		"no token":      func(t *ticket.Ticket) { t.Token = 0 },
		"no lease":      func(t *ticket.Ticket) { t.TTL = 0 },
		"no expiry":     func(t *ticket.Ticket) { t.Expires = time.Time{} },
		"name in bytes": func(t *ticket.Ticket) { t.Lock = "relock:{\xff}" },
	} {
		one := loan()
		change(&one)
		_, err := s.Sign(one, "shipping")
		require.ErrorIs(t, err, relock.ErrInvalid, what)
	}
	resume := loan()
	resume.Use, resume.Expires = ticket.UseResume, time.Time{}
	_, err = s.Sign(resume, "shipping")
	require.ErrorContains(t, err, "set Expires")
}

func TestTheLongestNameFits(t *testing.T) {
	one := loan()
	one.Lock = strings.Repeat("\x01", 2*relock.MaxNameLen+2) // six bytes of JSON for each
	signed, err := newSigner(t).Sign(one, "shipping")
	require.NoError(t, err)
	got, err := newVerifier(t).Verify(signed)
	require.NoError(t, err)
	require.Equal(t, one.Lock, got.Lock)
}

func TestWrongSettingsAreInvalid(t *testing.T) {
	public := publicOf(keyOf(1))
	verifier := func(audience string, issuers ticket.Issuers, options ...ticket.Option) error {
		v, err := ticket.NewVerifier(audience, issuers, options...)
		require.Nil(t, v)
		return err
	}
	signer := func(issuer, id string, key ed25519.PrivateKey) error {
		s, err := ticket.NewSigner(issuer, id, key)
		require.Nil(t, s)
		return err
	}
	issuers := ticket.Issuers{"orders": {"k1": public}}
	for i, err := range []error{
		verifier("", issuers),
		verifier("shipping", nil),
		verifier("shipping", ticket.Issuers{"orders": nil}),
		verifier("shipping", ticket.Issuers{"": {"k1": public}}),
		verifier("shipping", ticket.Issuers{"orders": {"": public}}),
		verifier("shipping", ticket.Issuers{"orders": {"k1": public[:31]}}),
		verifier("shipping", issuers, ticket.WithMaxLife(0)),
		verifier("shipping", issuers, ticket.WithLeeway(-1)),
		verifier("shipping", issuers, ticket.WithLeeway(time.Hour)),
		signer("", "k1", keyOf(1)),
		signer("orders", "", keyOf(1)),
		signer("orders", "k1", keyOf(1)[:32]),
	} {
		require.ErrorIs(t, err, relock.ErrInvalid, "%d", i)
		require.NotContains(t, err.Error(), fmt.Sprint([]byte(public[:4])), "%d", i)
	}
}

func TestASignedTicketIsNotShown(t *testing.T) {
	signer := newSigner(t)
	signed, err := signer.Sign(loan(), "shipping")
	require.NoError(t, err)
	var log strings.Builder
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("sent", "ticket", signed, "in", struct{ Ticket ticket.Signed }{signed}, "signer", signer)
	}
	shown := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		shown += fmt.Sprintf(verb, signed) + fmt.Sprintf(verb, []ticket.Signed{signed}) + fmt.Sprintf(verb, signer)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%x"} {
		shown += fmt.Sprintf(verb, *signer) + fmt.Sprintf(verb, signer) + fmt.Sprintf(verb, struct{ s ticket.Signer }{*signer})
	}
	_, err = json.Marshal(map[string]any{"ticket": signed})
	require.ErrorContains(t, err, "send its Text")
	for _, secret := range append(strings.Split(signed.Text(), "."), fmt.Sprintf("%x", signed.Text()), fmt.Sprintf("%x", []byte(keyOf(1)[:8])), fmt.Sprint([]byte(keyOf(1)[:8]))[1:10]) {
		require.NotContains(t, shown, secret)
	}
	require.Contains(t, shown, "[signed ticket]")
	require.Contains(t, shown, "signer orders")
}

// A text that Verify accepts is one that the key has signed.
func FuzzVerify(f *testing.F) {
	good, err := newSigner(f).Sign(loan(), "shipping")
	require.NoError(f, err)
	header, claims := fields(f, good)
	f.Add(good.Text())
	f.Add("..")
	f.Add(token(f, map[string]any{"alg": "none"}, claims, func(string) []byte { return nil }).Text())
	f.Add(token(f, header, claims, withHMAC(publicOf(keyOf(1)))).Text())
	v := newVerifier(f)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := v.Verify(ticket.Signed(text))
		if err != nil {
			require.ErrorIs(t, err, relock.ErrTicket)
			require.Zero(t, got)
			return
		}
		dot := strings.LastIndex(text, ".")
		signature, err := base64.RawURLEncoding.DecodeString(text[dot+1:])
		require.NoError(t, err)
		require.True(t, ed25519.Verify(publicOf(keyOf(1)), []byte(text[:dot]), signature))
	})
}

// What a known issuer signs may be anything, and is a ticket or an error.
func FuzzClaims(f *testing.F) {
	good, err := newSigner(f).Sign(loan(), "shipping")
	require.NoError(f, err)
	parts := strings.Split(good.Text(), ".")
	for _, seed := range []string{`{}`, `null`, `[]`, `{"iss":"orders","aud":[],"exp":1e400}`, `{"iss":"orders","exp":-1e18}`} {
		f.Add([]byte(seed))
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(f, err)
	f.Add(content)
	v := newVerifier(f)
	f.Fuzz(func(t *testing.T, claims []byte) {
		text := parts[0] + "." + base64.RawURLEncoding.EncodeToString(claims)
		text += "." + base64.RawURLEncoding.EncodeToString(with(keyOf(1))(text))
		got, err := v.Verify(ticket.Signed(text))
		if err != nil {
			require.ErrorIs(t, err, relock.ErrTicket)
			require.Zero(t, got)
			return
		}
		require.NotEmpty(t, got.ID)
		require.NotEmpty(t, got.Lock)
		require.NotEmpty(t, got.Hold)
		require.Positive(t, got.Token)
		require.WithinDuration(t, time.Now(), got.Expires, ticket.DefaultMaxLife+2*ticket.DefaultLeeway)
	})
}
