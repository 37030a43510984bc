package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"lmwarden/internal/access"
	"lmwarden/internal/certs"
	"lmwarden/internal/config"
)

// guards are those who let somebody in.
type guards struct {
	gate   *access.Gate
	logins *access.Logins
}

// newGuards puts the keys, limits and password of a configuration in force.
func newGuards(cfg *config.Config) (guards, error) {
	g := guards{&access.Gate{}, access.NewLogins(access.Password{})}
	return g, g.set(cfg)
}

// set changes who is let in from now on. When it fails nothing has changed.
func (g guards) set(cfg *config.Config) error {
	password, err := cfg.AdminPassword()
	if err != nil {
		return fmt.Errorf("admin.password: %w", err)
	}
	keys := make([]access.Key, 0, len(cfg.Keys))
	for _, k := range cfg.Keys {
		keys = append(keys, access.Key{
			Name: k.Name, Hash: k.Hash, Models: k.Models, Batch: k.Priority == config.Batch,
			Limits: access.Limits{InFlight: k.InFlight, PerMinute: k.PerMinute},
		})
	}
	if err := g.gate.SetKeys(keys); err != nil {
		return err
	}
	g.gate.SetModels(modelLimits(cfg))
	g.logins.SetPassword(password)
	return nil
}

// modelLimits are what may be taken of each model. One without a name, which is then
// the only one, stands for all that its engines serve.
func modelLimits(cfg *config.Config) map[string]access.Limits {
	all := map[string]access.Limits{}
	for _, m := range cfg.Models {
		all[m.Name] = access.Limits{InFlight: m.InFlight, PerMinute: m.PerMinute}
	}
	return all
}

// secure makes a server speak TLS, and HTTP/2 to clients that can.
func secure(s *http.Server, t config.TLS, log *slog.Logger) error {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	if !t.On() {
		return nil
	}
	files, err := certs.Open(t.Certificate, t.Key, log)
	if err != nil {
		return err
	}
	s.TLSConfig = files.Config()
	return nil
}

// serveOn serves until the server or the listener is closed.
func serveOn(s *http.Server, l net.Listener, t config.TLS) error {
	var err error
	if t.On() {
		err = s.ServeTLS(l, "", "")
	} else {
		err = s.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// scheme is that of a listener's address.
func scheme(t config.TLS) string {
	if t.On() {
		return "https://"
	}
	return "http://"
}

// NewKey prints an API key and its entry in a configuration.
func NewKey(io IO, name string) error {
	key, hash := access.NewKey()
	_, err := fmt.Fprintf(io.Out, "%s\n", key)
	if err == nil {
		_, err = fmt.Fprintf(io.Err, "Give this key to %s; it is kept nowhere. In the configuration:\n\nkeys:\n  - name: %s\n    hash: %s\n", name, name, hash)
	}
	return err
}

// NewPassword prints the hash of a password, for admin.password.
func NewPassword(io IO, plain string) error {
	p, err := access.NewPassword(plain)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(io.Out, p)
	return err
}

// lookAgain is how often a configuration file is looked at.
const lookAgain = 2 * time.Second

// content tells one content of a file from another.
func content(path string) (d [sha256.Size]byte, err error) {
	text, err := os.ReadFile(path)
	return sha256.Sum256(text), err
}

// changes tells of each content of a file other than the one that is known, once
// it has been the same twice in a row: an editor may be in the middle of writing.
func changes(ctx context.Context, path string, known [sha256.Size]byte, tell chan<- struct{}) {
	last := known
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, err := content(path)
		if err == nil && now == last && now != known {
			known = now
			select {
			case tell <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		last = now
	}
}
