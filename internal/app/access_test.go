package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/access"
	"lmwarden/internal/config"
)

const guardedBody = `{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"hello"}]}`

// keyEntry is a key as it stands in a configuration.
func keyEntry(name, key, more string) string {
	return "keys:\n- name: " + name + "\n  hash: " + access.HashKey(key).String() + "\n" + more
}

func TestKeysOfAReloadAreInForceAtOnce(t *testing.T) {
	e := newEngine(t, 2, nil)
	g, f := startFromFile(t, e)
	ask := func(key string) int {
		return g.post("/v1/chat/completions", []byte(guardedBody), "Authorization", "Bearer "+key).status
	}
	if got := ask("anything"); got != http.StatusOK {
		t.Fatalf("without keys: %d", got)
	}
	f.write(keyEntry("alice", "key-of-alice", ""), e)
	g.reload(f)
	if ask("anything") != http.StatusUnauthorized || ask("key-of-alice") != http.StatusOK {
		t.Error("the new key is not asked for")
	}
	f.write(keyEntry("bob", "key-of-bob", "  in_flight: 1\n"), e)
	g.reload(f)
	if ask("key-of-alice") != http.StatusUnauthorized || ask("key-of-bob") != http.StatusOK {
		t.Error("a key that was taken away is served")
	}
	f.write("keys:\n- name: carol\n  hash: nonsense\n", e)
	if err := g.Reload(t.Context(), f.read); err == nil {
		t.Error("a bad key was taken")
	}
	if ask("key-of-bob") != http.StatusOK || ask("anything") != http.StatusUnauthorized {
		t.Error("a bad file changed who is let in")
	}
	if strings.Contains(g.log.String(), "key-of-") {
		t.Error("a key stands in the log")
	}
	if !strings.Contains(g.log.String(), `"key":"bob"`) {
		t.Error("whose key it was does not stand in the log")
	}
	g.checkNothingInFlight()
}

// TestLimitsOfAModelAreInForceAtOnce, and what was taken before counts.
func TestLimitsOfAModelAreInForceAtOnce(t *testing.T) {
	e := newEngine(t, 2, nil)
	g, f := startFromFile(t, e)
	f.write("", e)
	plain, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	limited := func(limit string) {
		t.Helper()
		f.text(strings.Replace(string(plain), "  engines:", "  "+limit+"\n  engines:", 1))
		g.reload(f)
	}
	ask := func() reply { return g.post("/v1/chat/completions", []byte(guardedBody)) }
	limited("per_minute: 20")
	if r := ask(); r.status != http.StatusOK {
		t.Fatalf("the first of two at once: %d %s", r.status, r.body)
	}
	limited("per_minute: 10")
	if r := ask(); r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" {
		t.Errorf("the one at once of 10 a minute was taken before the reload: %d %s", r.status, r.body)
	}
	if r := g.send(http.MethodGet, g.AdminURL()+"/api/settings", nil); !strings.Contains(string(r.body), `"limits":[{"model":"`+testModel+`","in_flight_limit":null,"per_minute_limit":10,"open":0}]`) {
		t.Errorf("settings: %s", r.body)
	}
	f.text(string(plain))
	g.reload(f)
	if r := ask(); r.status != http.StatusOK {
		t.Errorf("without a limit: %d %s", r.status, r.body)
	}
	if !strings.Contains(g.log.String(), "limits of models") {
		t.Error("the log does not tell of the change")
	}
	g.checkNothingInFlight()
}

func TestTheConsoleAsksForThePassword(t *testing.T) {
	hash, err := access.NewPassword("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, []string{newEngine(t, 1, nil).url()}, func(c *config.Config) { c.Admin.Password = config.NewSecret(hash.String()) }).awaitReady()
	g.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if r := g.send(http.MethodGet, g.AdminURL()+"/api/models", nil); r.status != http.StatusUnauthorized {
		t.Errorf("without it: %d", r.status)
	}
	login := url.Values{"password": {"correct horse"}}.Encode()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.AdminURL()+"/login", strings.NewReader(login))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	cookie, _, _ := strings.Cut(res.Header.Get("Set-Cookie"), ";")
	if r := g.send(http.MethodGet, g.AdminURL()+"/api/models", nil, "Cookie", cookie); r.status != http.StatusOK {
		t.Errorf("after the login: %d %s", r.status, r.body)
	}
	if r := g.send(http.MethodGet, g.AdminURL()+"/settings", nil, "Cookie", cookie); strings.Contains(string(r.body), hash.String()) {
		t.Error("the settings show the hash")
	}
	if r := g.send(http.MethodGet, g.URL()+"/v1/models", nil); r.status != http.StatusOK {
		t.Errorf("clients are asked for it: %d", r.status)
	}
}

// certificate writes one for 127.0.0.1 and returns it with whom to trust.
func certificate(t *testing.T) (config.TLS, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := config.TLS{Certificate: filepath.Join(t.TempDir(), "crt"), Key: filepath.Join(t.TempDir(), "key")}
	for file, block := range map[string]*pem.Block{files.Certificate: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return files, pool
}

// TestClientsMaySpeakHTTP2 with TLS, and without when they know that we can.
func TestClientsMaySpeakHTTP2(t *testing.T) {
	files, trusted := certificate(t)
	for _, secure := range []bool{true, false} {
		g := startGateway(t, []string{newEngine(t, 1, nil).url()}, func(c *config.Config) {
			if secure {
				c.TLS, c.Admin.TLS = files, files
			}
		})
		await(t, "the gateway to be ready", g.models.Ready)
		p := new(http.Protocols)
		p.SetHTTP2(secure)
		p.SetUnencryptedHTTP2(!secure)
		transport := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{RootCAs: trusted}}
		g.client = &http.Client{Transport: transport}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL()+"/v1/chat/completions",
			strings.NewReader(strings.Replace(guardedBody, `"max`, `"stream":true,"max`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.ProtoMajor != 2 || res.StatusCode != http.StatusOK || !strings.Contains(string(body), "[DONE]") {
			t.Errorf("TLS %v: %s %d, %v: %s", secure, res.Proto, res.StatusCode, err, body)
		}
		if r := g.send(http.MethodGet, g.AdminURL()+"/healthz", nil); r.status != http.StatusOK || strings.HasPrefix(g.AdminURL(), "https") != secure {
			t.Errorf("TLS %v: admin at %s: %d", secure, g.AdminURL(), r.status)
		}
		g.checkNothingInFlight()
	}
}

func TestACertificateThatCannotBeReadIsSaidAtTheStart(t *testing.T) {
	cfg := config.Default()
	cfg.Data, cfg.TLS = config.MemoryOnly, config.TLS{Certificate: "no.crt", Key: "no.key"}
	var e config.Engine
	if err := e.URL.UnmarshalText([]byte("http://127.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	cfg.Models = []config.Model{{Engines: []config.Engine{e}}}
	cfg.Fill()
	if _, err := NewGateway(cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "tls: certificate no.crt") {
		t.Errorf("%v", err)
	}
}

// TestAFileThatChangesIsReadAgain without a signal, and not while it is written.
func TestAFileThatChangesIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "warden.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	known, err := content(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	tell, ended := make(chan struct{}), make(chan struct{})
	go func() { changes(ctx, path, known, tell); close(ended) }()
	write("two")
	select {
	case <-tell:
	case <-time.After(10 * lookAgain):
		t.Error("not told of the change")
	}
	stop()
	<-ended
}
