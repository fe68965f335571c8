package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What only Linux can do: it has another authority in SSL_CERT_FILE, and tells a process that its
// parent is gone.

func TestTheCommandEndsWithRelock(t *testing.T) {
	s := onShared(t)
	p, pid := s.startProbe("plain", "job", "--ttl", "2s")
	p.signal(syscall.SIGKILL)
	gone(t, pid)
	p.expect(&p.stdout, "got terminated")
	s.free("job") // after its lease
}

func TestACommandIgnoresCtrlZWhereRelockWasStartedToIgnoreIt(t *testing.T) {
	s := onShared(t)
	for trap, want := range map[string]bool{`trap "" TSTP`: true, "true": false} {
		p := startProgram(t, "/bin/sh", s.on(), "-c", trap+`; exec "$@"`, "sh",
			binary, "run", "job", "--", "sed", "-n", "s/^SigIgn:.//p", "/proc/self/status")
		require.Equal(t, 0, p.code())
		ignored, err := strconv.ParseUint(strings.TrimSpace(p.stdout.String()), 16, 64)
		require.NoError(t, err)
		require.Equal(t, want, ignored>>(syscall.SIGTSTP-1)&1 == 1, trap)
	}
}

func TestTLS(t *testing.T) {
	s := onShared(t)
	s.hold("job")
	addr, authority := tlsInFrontOf(t, s.server.Addr())
	target := "rediss://" + addr

	got := do(t, []setup{env("SSL_CERT_FILE=" + authority)}, "ls", "--url", target)
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "job")

	got = do(t, nil, "ls", "--url", target)
	require.Equal(t, codeUnavailable, got.code)
	require.Contains(t, got.stderr, "certificate")
}

// tlsInFrontOf takes TLS connections for a server that knows none. It returns its address, and the
// file of the authority that has signed its certificate.
func tlsInFrontOf(t *testing.T, server string) (addr, authority string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relock test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	authority = filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))

	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12,
	})
	require.NoError(t, err)
	inFrontOf(t, listener, server, 0)
	return listener.Addr().String(), authority
}
