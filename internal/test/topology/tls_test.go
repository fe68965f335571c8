package topology_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Does a user with few commands have all that a lock needs over TLS?

// authority signs certificates for one test.
type authority struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), pool: x509.NewCertPool()}
	a.key, a.cert = a.sign("authority", nil)
	a.pool.AddCert(a.cert)
	return a
}

// sign makes a key and a certificate for a server and client on this machine; without parent, for
// the authority.
func (a *authority) sign(name string, parent *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signer := a.key
	if parent == nil {
		parent, signer = template, key
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	for suffix, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		require.NoError(a.t, os.WriteFile(a.file(name+suffix), pem.EncodeToMemory(block), 0o600))
	}
	return key, cert
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// certificate is one that the authority has signed, for a client.
func (a *authority) certificate(name string) tls.Certificate {
	a.t.Helper()
	a.sign(name, a.cert)
	c, err := tls.LoadX509KeyPair(a.file(name+".crt"), a.file(name+".key"))
	require.NoError(a.t, err)
	return c
}

// safe is a server that speaks TLS to clients with a certificate, and has a user that may do no
// more than locks need.
type safe struct {
	*stage.Arena
	authority *authority
	addr      string
	client    tls.Certificate
}

func onTLS(t *testing.T) *safe {
	t.Helper()
	a := newAuthority(t)
	a.sign("server", a.cert)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	args := []string{
		"--tls-port", strconv.Itoa(port), "--tls-auth-clients", "yes",
		"--tls-cert-file", a.file("server.crt"), "--tls-key-file", a.file("server.key"), "--tls-ca-cert-file", a.file("authority.crt"),
	}
	args = append(args, "--user", "app", "on", ">secret", "~relock:*", "&relock:*")
	for _, command := range stage.ACLCommands {
		args = append(args, "+"+command)
	}
	return &safe{
		Arena: stage.OnOwn(t, args...), authority: a,
		addr: fmt.Sprint("127.0.0.1:", port), client: a.certificate("client"),
	}
}

func (w *safe) config() *tls.Config {
	return &tls.Config{RootCAs: w.authority.pool, Certificates: []tls.Certificate{w.client}, MinVersion: tls.VersionTLS12}
}

// peer is a client of that user, with faults inside of the encryption.
func (w *safe) peer(config *tls.Config, password string, options ...relock.Option) *stage.Peer {
	w.T.Helper()
	var p *stage.Peer
	p = w.PeerOn(func(o *redis.Options) {
		o.Addr, o.Username, o.Password = w.addr, "app", password
		o.ReadTimeout, o.WriteTimeout = stage.OnWire, stage.OnWire
		dialer := &tls.Dialer{Config: config}
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return p.Faults.Dialer(dialer.DialContext)(ctx, network, addr)
		}
	}, options...)
	return p
}

func TestOverTLSAUserWithFewCommandsHasAllThatALockDoes(t *testing.T) {
	w := onTLS(t)
	ttl := relock.WithTTL(1500 * time.Millisecond)
	p, q := w.peer(w.config(), "secret", ttl), w.peer(w.config(), "secret", ttl)
	l, other := p.NewLock("a"), q.NewLock("a")

	// Enter again, refuse, wait, renew, and hand over.
	outer := w.Enter(t.Context(), l)
	inner := w.Enter(outer, l)
	w.RequireCount("a", 2)
	_, err := other.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	waiter := w.Start(t.Context(), other)
	w.AwaitWaiters("a", 1)
	renewals := w.Counter(p, stage.LuaRenew)
	redistest.Eventually(t, w.Limit, func() bool { return renewals() >= 4 }, "the lease is renewed")
	require.NoError(t, inner.Err())
	w.Leave(inner, l)
	w.Leave(outer, l)
	mine := waiter.Section()
	w.Draw(mine, other)
	w.Leave(mine, other)

	// Twenty wait for one lock.
	c := &stage.Crowd{Arena: w.Arena}
	section := w.Enter(t.Context(), l)
	c.Enter(section, l)
	for i := range 20 {
		c.Joins([]*stage.Peer{p, q}[i%2].NewLock("a"))
	}
	w.AwaitWaiters("a", 20)
	c.Leave(section)
	w.Leave(section, l)
	c.Through(w.Limit, 21)

	// Cut the pub/sub connection while the lock is freed.
	section = w.Enter(t.Context(), l)
	waiter = w.Start(t.Context(), other)
	w.AwaitWaiters("a", 1)
	q.Faults.CutPubSub()
	w.Leave(section, l)
	w.Leave(waiter.Section(), other)

	// Lose a reply.
	p.Faults.Once(w.Script(stage.LuaAcquire), redistest.DropReply(redistest.EOF))
	section = w.Enter(t.Context(), l)
	w.RequireCount("a", 1)
	p.Faults.Once(w.Script(stage.LuaRelease), redistest.DropReply(redistest.EOF))
	w.Leave(section, l)

	// The server restarts empty.
	section = w.Enter(t.Context(), l)
	w.Server.Restart()
	require.Equal(t, event.LossTaken, w.Lost(section))
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	w.Leave(w.Enter(t.Context(), other), other)

	// Ask for a name that the user may not use.
	_, err = w.peer(w.config(), "secret", relock.WithPrefix("elsewhere:")).NewLock("a").TryLock(t.Context())
	require.ErrorContains(t, err, "NOPERM")
}

func TestAClientThatIsRefusedOverTLSIsToldWhy(t *testing.T) {
	w := onTLS(t)
	try := func(config *tls.Config, password string) error {
		l := w.peer(config, password).NewLock("a")
		return w.Call(func() error { _, err := l.State(t.Context()); return err })
	}
	require.NoError(t, try(w.config(), "secret"))
	require.ErrorContains(t, try(w.config(), "guess"), "WRONGPASS")

	stranger := w.config()
	stranger.RootCAs = newAuthority(t).pool
	require.ErrorContains(t, try(stranger, "secret"), "certificate signed by unknown authority")

	nobody := w.config()
	nobody.Certificates = nil
	nobody.MaxVersion = tls.VersionTLS12 // 1.3 refuses later, or not at all
	require.ErrorContains(t, try(nobody, "secret"), "remote error: tls")
}
