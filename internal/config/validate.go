package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"lmwarden/internal/access"
)

// maxRanks is far above what one server can have; more is a slip of the finger.
const maxRanks = 1024

// Validate reports everything that is wrong with the values, as a Problems.
// policies are the names that the routing core knows.
func (c *Config) Validate(policies []string) error {
	v := validator{config: c}
	v.listeners()
	v.access()
	v.general()
	v.tracing()
	v.models(policies)
	return v.problems.err()
}

// Loopback says whether an address HOST:PORT can be reached from this machine
// only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

type validator struct {
	config   *Config
	problems Problems
}

func (v *validator) report(path, format string, args ...any) {
	s := &v.config.source
	v.problems = append(v.problems, s.problem(s.find(path), path, format, args...))
}

func (v *validator) listeners() {
	c := v.config
	clients, clientsOK := v.address("listen", c.Listen)
	admin, adminOK := v.address("admin.listen", c.Admin.Listen)
	if clientsOK && adminOK && clients == admin && c.Listen == c.Admin.Listen && clients != 0 {
		v.report("admin.listen", "%q is the clients' address; the console needs one of its own", c.Admin.Listen)
	}
	if adminOK && !Loopback(c.Admin.Listen) && !c.Admin.Open && c.Admin.Password.IsZero() {
		v.report("admin.listen", "%q can be reached from other machines and nobody has to log in there; "+
			"set admin.password, listen on 127.0.0.1, or set admin.open: true if the network keeps strangers out", c.Admin.Listen)
	}
	for i, h := range c.Admin.Hosts {
		if h == "" || strings.ContainsAny(h, "/:* \t") {
			v.report(fmt.Sprintf("admin.hosts[%d]", i), "%q is not a host name; write it without scheme and port", h)
		}
	}
}

// access checks keys, password and certificates.
func (v *validator) access() {
	c := v.config
	if !c.Admin.Password.IsZero() {
		if _, err := c.AdminPassword(); err != nil {
			v.report("admin.password", "%s", err)
		}
	}
	v.pair("tls", c.TLS)
	v.pair("admin.tls", c.Admin.TLS)
	names, hashes := map[string]bool{}, map[access.KeyHash]string{}
	for i, k := range c.Keys {
		path := fmt.Sprintf("keys[%d]", i)
		switch other, twice := hashes[k.Hash]; {
		case k.Name == "":
			v.report(path+".name", "no name; write who has the key")
		case names[k.Name]:
			v.report(path+".name", "the name %q is another key's", k.Name)
		case k.Hash == access.KeyHash{}:
			v.report(path+".hash", "no hash; warden keys new draws a key and prints it")
		case twice:
			v.report(path+".hash", "this is the key of %q", other)
		}
		names[k.Name], hashes[k.Hash] = true, k.Name
		v.take(path, k.InFlight, k.PerMinute)
		if k.Priority != "" {
			v.word(path+".priority", "priority", k.Priority, priorities)
		}
	}
}

// take checks what may be taken with a key or of a model.
func (v *validator) take(path string, inFlight, perMinute int) {
	if inFlight < 0 {
		v.report(path+".in_flight", "%d requests; write a number from 1, or leave it out for any number", inFlight)
	}
	if perMinute < 0 {
		v.report(path+".per_minute", "%d requests a minute; write a number from 1, or leave it out for any number", perMinute)
	}
}

func (v *validator) pair(path string, t TLS) {
	if (t.Certificate == "") != (t.Key == "") {
		v.report(path, "a certificate needs its key: give the files certificate and key")
	}
}

// AdminPassword is the hash of admin.password, the zero Password for none.
func (c *Config) AdminPassword() (p access.Password, err error) {
	if c.Admin.Password.IsZero() {
		return p, nil
	}
	text, err := c.Admin.Password.Reveal()
	if err != nil {
		return p, err
	}
	return p, p.UnmarshalText([]byte(text))
}

// address checks HOST:PORT and tells the port.
func (v *validator) address(path, address string) (port int, ok bool) {
	host, text, err := net.SplitHostPort(address)
	if err == nil && !strings.ContainsAny(host, "/ \t") {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil {
			return int(n), true
		}
	}
	v.report(path, "%q is not an address; write HOST:PORT with a port from 0 to 65535, as in 127.0.0.1:8100", address)
	return 0, false
}

func (v *validator) general() {
	c := v.config
	if c.Data == "" {
		v.report("data", "no folder; write a path, or %q to keep nothing", MemoryOnly)
	}
	for i, h := range c.Session.Headers {
		if !isHeaderName(h) {
			v.report(fmt.Sprintf("session.headers[%d]", i), "%q is not the name of a header; allowed are letters, digits and -", h)
		}
	}
	if c.Session.MaxConversations < 1 {
		v.report("session.max_conversations", "%d conversations; at least 1 must be known", c.Session.MaxConversations)
	}
	if c.Limits.Buffered < c.Limits.Body {
		v.report("limits.buffered", "%s is less than one body may have (limits.body: %s)", c.Limits.Buffered, c.Limits.Body)
	}
	if c.Limits.Waiting < 1 {
		v.report("limits.waiting", "%d requests; write a number from 1, or choose a policy that lets none wait", c.Limits.Waiting)
	}
	v.word("limits.keep_alive", "keep-alive", c.Limits.KeepAlive, keepAlives)
	v.word("log.level", "level", c.Log.Level, logLevels)
	v.word("log.format", "format", c.Log.Format, logFormats)
}

func (v *validator) tracing() {
	t := v.config.Tracing
	if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			v.report("tracing.endpoint", "this is not the address of a collector; write http:// or https:// with a host, as in http://127.0.0.1:4318, and what it asks for into tracing.headers")
		}
	}
	if !(t.Sample >= 0 && t.Sample <= 1) {
		v.report("tracing.sample", "%v is not a share; write a number from 0 (none) to 1 (all)", t.Sample)
	}
	for i, h := range t.Headers {
		at := fmt.Sprintf("tracing.headers[%d]", i)
		if !isHeaderName(h.Name) {
			v.report(at+".name", "%q is not the name of a header; allowed are letters, digits and -", h.Name)
		}
		if _, err := h.Value.Reveal(); err != nil {
			v.report(at+".value", "%s", err)
		}
	}
}

func (v *validator) word(path, what, word string, allowed []string) {
	if !slices.Contains(allowed, word) {
		v.report(path, "unknown %s %q; %s", what, word, oneOf(word, allowed))
	}
}

func (v *validator) models(policies []string) {
	c := v.config
	if len(c.Models) == 0 {
		v.report("models", "no model; at least one is needed, as in\n  models:\n    - engines:\n        - url: http://127.0.0.1:8000")
	}
	owner := map[string]string{} // who has a name, by path
	claim := func(path, kind, name string) {
		if first, taken := owner[name]; taken {
			v.report(path, "the %s %q is already %s; names and aliases must differ", kind, name, first)
			return
		}
		owner[name] = path
	}
	for i, m := range c.Models {
		path := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Name != "":
			claim(path+".name", "name", m.Name)
		case len(c.Models) > 1:
			v.report(path+".name", "no name; with several models each needs one")
		}
	}
	for i, m := range c.Models {
		path := fmt.Sprintf("models[%d]", i)
		for j, a := range m.Aliases {
			at := fmt.Sprintf("%s.aliases[%d]", path, j)
			if a == "" {
				v.report(at, "the alias is empty")
				continue
			}
			claim(at, "alias", a)
		}
		v.word(path+".policy", "policy", m.Policy, policies)
		if m.Shadow != "" {
			v.word(path+".shadow", "policy", m.Shadow, policies)
		}
		v.word(path+".host_tier", "host tier", m.HostTier, hostTiers)
		if m.SpillThreshold < 0 {
			v.report(path+".spill_threshold", "%d is not a spill threshold; write auto or a whole number from 1", int(m.SpillThreshold))
		}
		v.take(path, m.InFlight, m.PerMinute)
		if m.Waiting < 0 {
			v.report(path+".waiting", "%d requests; write a number from 1, or leave it out for limits.waiting", m.Waiting)
		}
		v.engines(path, m.Engines)
	}
}

func (v *validator) engines(path string, engines []Engine) {
	if len(engines) == 0 {
		v.report(path+".engines", "no engine; at least one is needed, as in\n  engines:\n    - url: http://127.0.0.1:8000")
	}
	first := map[string]string{}
	for i, e := range engines {
		at := fmt.Sprintf("%s.engines[%d]", path, i)
		url := e.URL.String()
		if e.URL.IsZero() {
			v.report(at+".url", "no address; write it, as in url: http://127.0.0.1:8000")
		} else if other, twice := first[url]; twice {
			v.report(at+".url", "%s is already %s; one server behind one URL is one engine, its replicas are its ranks", url, other)
		} else {
			first[url] = at + ".url"
		}
		if e.Ranks < 0 || e.Ranks > maxRanks {
			v.report(at+".ranks", "%d ranks; allowed are 1 to %d, or leave it out to ask the engine", e.Ranks, maxRanks)
		}
		v.kvEvents(at, e)
		if !e.APIKey.IsZero() {
			if _, err := e.APIKey.Reveal(); err != nil {
				v.report(at+".api_key", "%s", err)
			}
		}
	}
}

// kvEvents checks the ports that count up by rank.
func (v *validator) kvEvents(at string, e Engine) {
	ranks := max(e.Ranks, 1) // the engine may tell more
	for _, p := range []struct {
		key string
		Endpoint
	}{{"kv_events", e.KVEvents}, {"kv_events_replay", e.KVEventsReplay}} {
		if last := p.port + ranks - 1; last > 65535 {
			v.report(at+"."+p.key, "%s leaves no port for each of %d ranks; the last would be %d", p, ranks, last)
		}
	}
	events, replay := e.KVEvents, e.KVEventsReplay
	switch apart := replay.port - events.port; {
	case replay.IsZero():
	case events.IsZero():
		v.report(at+".kv_events_replay", "there is nothing to send again without kv_events")
	case replay.host == events.host && -ranks < apart && apart < ranks:
		v.report(at+".kv_events_replay", "%s is less than %d ports away from kv_events; ports count up by rank", replay, ranks)
	}
}

func isHeaderName(s string) bool {
	for _, r := range s {
		ok := r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !ok {
			return false
		}
	}
	return s != ""
}
