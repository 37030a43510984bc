package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lmwarden/internal/access"
	"lmwarden/internal/config"
)

// What a real gateway answers is what top reads, behind a login too.
func TestTopPrintsARunningGateway(t *testing.T) {
	e := newEngine(t, 2, nil)
	hash, err := access.NewPassword("a long password")
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, []string{e.url()}, func(c *config.Config) { c.Admin.Password = config.NewSecret(hash.String()) }).awaitReady()
	c := g.conversation("hello", "X-Warden-Session", "s-1")
	c.turn()
	name := c.turn().header.Get("X-Warden-Conversation")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("a long password\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer
	if err := Top(t.Context(), IO{Out: &out}, TopOptions{Admin: g.AdminURL(), User: "warden", PasswordFile: file}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"All 2 replicas are ready.", testModel + "\n", "Affinity on", "Sticky 100.0%", name} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := Top(t.Context(), IO{Out: &out}, TopOptions{Admin: g.AdminURL()}); err == nil || !strings.Contains(err.Error(), "WARDEN_ADMIN_PASSWORD") {
		t.Errorf("without the password: %v", err)
	}
	if err := Top(t.Context(), IO{Out: &out}, TopOptions{Admin: g.AdminURL(), Password: "a long password"}); err != nil {
		t.Error(err)
	}
}
