package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write makes a certificate for a name.
func write(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"crt": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARenewedCertificateIsServed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "first")
	var log strings.Builder
	f, err := Open(filepath.Join(dir, "crt"), filepath.Join(dir, "key"), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	f.now = func() time.Time { return now }
	get := f.Config().GetCertificate
	served := func() string {
		c, err := get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.Subject.CommonName
	}
	if got := served(); got != "first" {
		t.Fatal(got)
	}
	write(t, dir, "second")
	if got := served(); got != "first" {
		t.Errorf("%s: the files are looked at with every handshake", got)
	}
	now = now.Add(lookEvery)
	if got := served(); got != "second" {
		t.Errorf("after the renewal: %s", got)
	}

	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("half of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		now = now.Add(lookEvery)
		if got := served(); got != "second" {
			t.Errorf("with a broken key: %s", got)
		}
	}
	if n := strings.Count(log.String(), "cannot be read"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
	write(t, dir, "third")
	now = now.Add(lookEvery)
	if got := served(); got != "third" {
		t.Errorf("after the repair: %s", got)
	}
}

func TestFilesThatCannotBeReadAreNamed(t *testing.T) {
	_, err := Open("no.crt", "no.key", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "no.crt") {
		t.Errorf("%v", err)
	}
}
