package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var policies = []string{"off", "round-robin", "least-inflight", "session-hash", "affinity", "patience"}

const full = `listen: 0.0.0.0:8100
admin:
  listen: 127.0.0.1:9000
  open: false
  hosts: [warden.lan]
data: ":memory:"
models:
  - name: qwen3-4b-dp4
    served_name: Qwen/Qwen3-4B-Instruct-2507
    aliases: ["claude-*", qwen]
    policy: session-hash
    spill_threshold: 12
    patience: 20s
    shadow: affinity
    host_tier: "on"
    live_for: 5m
    in_flight: 24
    per_minute: 300
    waiting: 10
    engines:
      - url: http://127.0.0.1:8000/
        ranks: 4
        api_key: env:WARDEN_TEST_KEY
      - url: https://gpu-2:8443/vllm
        kv_events: tcp://gpu-2:5557
        kv_events_replay: tcp://[::1]:5657
  - name: 7
    engines: [{url: "http://[::1]:8001"}]
session: {headers: [X-My-Session], idle_for: 2h, max_conversations: 1000}
limits: {body: 8MiB, waiting: 50, wait: 1m, keep_alive: none, keep_alive_after: 5s}
scrape_interval: 500ms
timeouts:
  connect: 2s
log:
  level: debug
  format: json
tracing: {endpoint: "http://127.0.0.1:4318", sample: 0.1}
stop_timeout: 1m30s
`

func parseURL(t *testing.T, s string) URL {
	t.Helper()
	var u URL
	if err := u.UnmarshalText([]byte(s)); err != nil {
		t.Fatal(err)
	}
	return u
}

// sameConfig compares what a Config says, not where it was read.
var sameConfig = cmp.Options{
	cmpopts.IgnoreUnexported(Config{}),
	cmpopts.EquateEmpty(),
	cmp.AllowUnexported(URL{}, Secret{}, Endpoint{}),
}

func TestParseReadsEveryKeyOverTheDefaults(t *testing.T) {
	got, err := Parse("w.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listen = "0.0.0.0:8100"
	want.Admin = Admin{Listen: "127.0.0.1:9000", Hosts: []string{"warden.lan"}}
	want.Data = MemoryOnly
	want.Models = []Model{{
		Name: "qwen3-4b-dp4", ServedName: "Qwen/Qwen3-4B-Instruct-2507", Aliases: []string{"claude-*", "qwen"},
		Policy: "session-hash", SpillThreshold: 12, Patience: Patience(20 * time.Second), Shadow: "affinity", HostTier: "on", LiveFor: Duration(5 * time.Minute), IdleFor: Duration(2 * time.Hour),
		InFlight: 24, PerMinute: 300, Waiting: 10, Wait: Duration(time.Minute),
		Engines: []Engine{
			{URL: parseURL(t, "http://127.0.0.1:8000"), Ranks: 4, APIKey: NewSecret("env:WARDEN_TEST_KEY")},
			{URL: parseURL(t, "https://gpu-2:8443/vllm"), KVEvents: Endpoint{"gpu-2", 5557}, KVEventsReplay: Endpoint{"::1", 5657}},
		},
	}, {
		Name: "7", Policy: "patience", HostTier: "auto", LiveFor: Duration(10 * time.Minute), IdleFor: Duration(2 * time.Hour),
		Waiting: 50, Wait: Duration(time.Minute),
		Engines: []Engine{{URL: parseURL(t, "http://[::1]:8001")}},
	}}
	want.Session = Session{Headers: []string{"X-My-Session"}, IdleFor: Duration(2 * time.Hour), MaxConversations: 1000}
	want.Limits.Body = 8 << 20
	want.Limits.Waiting, want.Limits.Wait = 50, Duration(time.Minute)
	want.Limits.KeepAlive, want.Limits.KeepAliveAfter = "none", Duration(5*time.Second)
	want.ScrapeInterval = Duration(500 * time.Millisecond)
	want.Timeouts.Connect = Duration(2 * time.Second)
	want.Log = Log{Level: "debug", Format: "json"}
	want.Tracing = Tracing{Endpoint: "http://127.0.0.1:4318", Sample: 0.1}
	want.StopTimeout = Duration(90 * time.Second)
	if diff := cmp.Diff(want, got, sameConfig); diff != "" {
		t.Error(diff)
	}
	t.Setenv("WARDEN_TEST_KEY", "sk-1")
	if err := got.Validate(policies); err != nil {
		t.Error(err)
	}
}

func TestPrintedConfigurationReadsBackTheSame(t *testing.T) {
	text := strings.ReplaceAll(full, "        api_key: env:WARDEN_TEST_KEY\n", "")
	for _, in := range []string{text, "models: [{name: a, engines: [{url: http://a}]}]", ""} {
		c, err := Parse("w.yaml", []byte(in))
		if err != nil {
			t.Fatal(err)
		}
		printed, err := c.Print()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("printed", printed)
		if err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		if diff := cmp.Diff(c, again, sameConfig); diff != "" {
			t.Errorf("%s\n%s", diff, printed)
		}
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	const secret = "sk-very-secret"
	c, err := Parse("w.yaml", []byte("models: [{engines: [{url: http://a, api_key: "+secret+"}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	printed, err := c.Print()
	if err != nil {
		t.Fatal(err)
	}
	key := c.Models[0].Engines[0].APIKey
	for what, shown := range map[string]string{
		"print": string(printed), "%v": fmt.Sprintf("%v", c.Models), "%+v": fmt.Sprintf("%+v", c.Models),
		"%#v": fmt.Sprintf("%#v", key), "log": key.LogValue().String(),
	} {
		if strings.Contains(shown, secret) {
			t.Errorf("%s shows the secret: %s", what, shown)
		}
	}
	if !strings.Contains(string(printed), Mask) {
		t.Errorf("no mask in\n%s", printed)
	}
	if got, err := key.Reveal(); got != secret || err != nil {
		t.Errorf("Reveal() = %q, %v", got, err)
	}
	for _, text := range []string{
		"models:\n  - engines:\n      - {url: http://a, api_key: " + secret + ", x: 1}\n",
		"models:\n  - engines:\n      - url: http://a\n        api_key: \"" + secret + "\n",
		"models:\n  - engines:\n      - url: http://a\n        api_key: \"" + secret + "\\n\"\n",
		"models:\n  - engines:\n      - url: http://a\n        api_key:\n          " + secret + ": 1\n",
		"models:\n  - engines:\n      - url: http://me:" + secret + "@a\n",
		"tracing:\n  headers: [{name: 'a b', value: " + secret + "}]\n",
		"tracing: {endpoint: http://me:" + secret + "@a}\n",
	} {
		c, err := Parse("w.yaml", []byte(text))
		if err == nil {
			err = c.Validate(policies)
		}
		if err == nil {
			t.Errorf("accepted:\n%s", text)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the message shows the secret: %v", err)
		}
	}
}

func TestSecretReferences(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte("sk-file\nsecond line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WARDEN_TEST_KEY", "sk-env")
	for _, c := range []struct{ ref, want, err string }{
		{"plain", "plain", ""},
		{"env:WARDEN_TEST_KEY", "sk-env", ""},
		{"env:WARDEN_TEST_NONE", "", "environment variable WARDEN_TEST_NONE is not set"},
		{"file:" + file, "sk-file", ""},
		{"file:" + empty, "", "has an empty first line"},
		{"file:" + file + "x", "", "no such file"},
		{"a\rb", "", "control character"},
	} {
		got, err := NewSecret(c.ref).Reveal()
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v; want %q, %q", c.ref, got, err, c.want, c.err)
		}
	}
}

// TestMessages has the text as a person sees it.
func TestMessages(t *testing.T) {
	const engine = "engines: [{url: http://127.0.0.1:8000}]"
	for _, c := range []struct{ name, in, want string }{
		{"typo in a key", `
models:
  - name: a
    polcy: affinity
    ` + engine, `
w.yaml:4:5: models[0]: unknown key "polcy"; did you mean "policy"? allowed: name, served_name, aliases, policy, shadow, spill_threshold, in_flight, per_minute, patience, host_tier, engines, live_for, idle_for, waiting, wait
    4 |     polcy: affinity
      |     ^`},
		{"unknown key at the top", "modells: []", `
w.yaml:1:1: unknown key "modells"; did you mean "models"? allowed: listen, tls, admin, keys, data, models, history, session, limits, scrape_interval, timeouts, log, tracing, stop_timeout
    1 | modells: []
      | ^`},
		{"wrong types, all at once", `
listen: [a]
admin: yes
models: {name: a}
session: {max_conversations: many}
admin2: 1`, `
w.yaml:2:9: listen: a list stands where text belongs
    2 | listen: [a]
      |         ^
w.yaml:3:8: admin: the text "yes" stands where keys belong: listen, password, open, hosts, tls
    3 | admin: yes
      |        ^
w.yaml:4:9: models: keys stand where a list belongs; begin each entry with "- " on a line of its own
    4 | models: {name: a}
      |         ^
w.yaml:5:30: session.max_conversations: the text "many" stands where a whole number belongs
    5 | session: {max_conversations: many}
      |                              ^
w.yaml:6:1: unknown key "admin2"; did you mean "admin"? allowed: listen, tls, admin, keys, data, models, history, session, limits, scrape_interval, timeouts, log, tracing, stop_timeout
    6 | admin2: 1
      | ^`},
		{"bad duration", "scrape_interval: 5", `
w.yaml:1:18: scrape_interval: "5" is not a duration; write a number above 0 with its unit: 500ms, 30s, 10m, 1h30m
    1 | scrape_interval: 5
      |                  ^`},
		{"bad size", "limits:\n  body: 64MB", `
w.yaml:2:9: limits.body: "64MB" is not a size; write a whole number above 0 with its unit: B, KiB, MiB or GiB, as in 64MiB
    2 |   body: 64MB
      |         ^`},
		{"bad threshold", "models: [{spill_threshold: 0, " + engine + "}]", `
w.yaml:1:28: models[0].spill_threshold: "0" is not a spill threshold; write auto or a whole number from 1
    1 | models: [{spill_threshold: 0, engines: [{url: http://127.0.0.1:8000}]}]
      |                            ^`},
		{"tab", "log:\n\tlevel: info", `
w.yaml:2:1: a tab cannot indent; write spaces
    2 | 	level: info
      | ^`},
		{"repeated key", "data: a\ndata: b", `
w.yaml:2:1: the key "data" stands here a second time; the first is in line 1
    2 | data: b
      | ^`},
		{"second document", "data: a\n---\ndata: b", `
w.yaml:3:1: the file has a second document; write one
    3 | data: b
      | ^`},
		{"anchor", "data: &a x\nlisten: *a", `
w.yaml:1:7: data: anchors and aliases of YAML are not read here; write the value itself, in quotes if it begins with & or *
    1 | data: &a x
      |       ^
w.yaml:2:9: listen: anchors and aliases of YAML are not read here; write the value itself, in quotes if it begins with & or *
    2 | listen: *a
      |         ^`},
		{"not UTF-8", "data: \xff", `
w.yaml:1:1: the line is not UTF-8
    1 | data: ` + "\uFFFD" + `
      | ^`},
		{"no model", "data: a", `
w.yaml: models: no model; at least one is needed, as in
  models:
    - engines:
        - url: http://127.0.0.1:8000`},
		{"no engine", "models:\n  - name: a\n  - name: b\n    engines: []", `
w.yaml:2:5: models[0].engines: no engine; at least one is needed, as in
  engines:
    - url: http://127.0.0.1:8000
    2 |   - name: a
      |     ^
w.yaml:4:14: models[1].engines: no engine; at least one is needed, as in
  engines:
    - url: http://127.0.0.1:8000
    4 |     engines: []
      |              ^`},
		{"several values, all at once", `
listen: 8100
log: {level: loud}
models:
  - name: a
    aliases: [claude-*, claude-*]
    policy: afinity
    engines:
      - url: http://h:1
      - url: http://h:1/
        ranks: 5000
  - name: a
    aliases: [b]
    ` + engine + `
  - aliases: [b, ""]
    ` + engine + `
session: {headers: ["X A"], max_conversations: 0}`, `
w.yaml:2:9: listen: "8100" is not an address; write HOST:PORT with a port from 0 to 65535, as in 127.0.0.1:8100
    2 | listen: 8100
      |         ^
w.yaml:3:14: log.level: unknown level "loud"; allowed: debug, info, warn, error
    3 | log: {level: loud}
      |              ^
w.yaml:6:25: models[0].aliases[1]: the alias "claude-*" is already models[0].aliases[0]; names and aliases must differ
    6 |     aliases: [claude-*, claude-*]
      |                         ^
w.yaml:7:13: models[0].policy: unknown policy "afinity"; did you mean "affinity"? allowed: off, round-robin, least-inflight, session-hash, affinity, patience
    7 |     policy: afinity
      |             ^
w.yaml:10:14: models[0].engines[1].url: http://h:1 is already models[0].engines[0].url; one server behind one URL is one engine, its replicas are its ranks
   10 |       - url: http://h:1/
      |              ^
w.yaml:11:16: models[0].engines[1].ranks: 5000 ranks; allowed are 1 to 1024, or leave it out to ask the engine
   11 |         ranks: 5000
      |                ^
w.yaml:12:11: models[1].name: the name "a" is already models[0].name; names and aliases must differ
   12 |   - name: a
      |           ^
w.yaml:15:5: models[2].name: no name; with several models each needs one
   15 |   - aliases: [b, ""]
      |     ^
w.yaml:15:15: models[2].aliases[0]: the alias "b" is already models[1].aliases[0]; names and aliases must differ
   15 |   - aliases: [b, ""]
      |               ^
w.yaml:15:18: models[2].aliases[1]: the alias is empty
   15 |   - aliases: [b, ""]
      |                  ^
w.yaml:17:21: session.headers[0]: "X A" is not the name of a header; allowed are letters, digits and -
   17 | session: {headers: ["X A"], max_conversations: 0}
      |                     ^
w.yaml:17:48: session.max_conversations: 0 conversations; at least 1 must be known
   17 | session: {headers: ["X A"], max_conversations: 0}
      |                                                ^`},
		{"less memory than a body", "limits: {buffered: 1MiB}\nmodels: [{" + engine + "}]", `
w.yaml:1:20: limits.buffered: 1MiB is less than one body may have (limits.body: 64MiB)
    1 | limits: {buffered: 1MiB}
      |                    ^`},
		{"open admin listener", "admin:\n  listen: 0.0.0.0:8101\nmodels: [{" + engine + "}]", `
w.yaml:2:11: admin.listen: "0.0.0.0:8101" can be reached from other machines and nobody has to log in there; set admin.password, listen on 127.0.0.1, or set admin.open: true if the network keeps strangers out
    2 |   listen: 0.0.0.0:8101
      |           ^`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("w.yaml", []byte(c.in))
			if err == nil {
				err = cfg.Validate(policies)
			}
			got := "no error"
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestValidateConfigFromFlags(t *testing.T) {
	c := Default()
	c.Models = []Model{{Engines: []Engine{{URL: parseURL(t, "http://127.0.0.1:8000")}}}}
	c.Fill()
	if err := c.Validate(policies); err != nil {
		t.Error(err)
	}
	c.Models[0].Policy = "bogus"
	want := `models[0].policy: unknown policy "bogus"; allowed: off, round-robin, least-inflight, session-hash, affinity, patience`
	if err := c.Validate(policies); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestAdminListener(t *testing.T) {
	for _, c := range []struct {
		listen string
		open   bool
		ok     bool
	}{
		{"127.0.0.1:8101", false, true}, {"127.9.9.9:1", false, true}, {"[::1]:8101", false, true}, {"localhost:0", false, true},
		{":8101", false, false}, {"0.0.0.0:8101", false, false}, {"[::]:8101", false, false}, {"10.0.0.1:8101", false, false},
		{"gpu-box:8101", false, false}, {"0.0.0.0:8101", true, true}, {"127.0.0.1:8100", false, false}, {"127.0.0.1", false, false},
	} {
		cfg := Default()
		cfg.Models = []Model{{Engines: []Engine{{URL: parseURL(t, "http://a")}}}}
		cfg.Fill()
		cfg.Admin = Admin{Listen: c.listen, Open: c.open}
		if err := cfg.Validate(policies); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A file of brackets would otherwise take gigabytes to read.
func TestDeepNestingIsRefused(t *testing.T) {
	for _, unit := range []string{"[", "{a: ", "- ", "? ", "!a ", "[a,"} {
		text := strings.Repeat(unit, 4096)
		if _, err := Parse("w.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "nested too deep") {
			t.Errorf("%q repeated: %.200v", unit, err)
		}
	}
	if _, err := Parse("w.yaml", make([]byte, maxFile+1)); err == nil || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("a large file: %v", err)
	}
}

// TestDocumentation reads the example of docs/config.md: it has every
// key, and values that the text calls defaults are the defaults.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	c, err := Parse("docs/config.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ENGINE_KEY", "sk-1")
	t.Setenv("COLLECTOR_KEY", "k")
	t.Setenv("ADMIN_PASSWORD_HASH", "pbkdf2-sha256:600000:c2FsdCBhbmQgcGVwcGVyLg:"+strings.Repeat("A", 43))
	if err := c.Validate(policies); err != nil {
		t.Error(err)
	}
	want := Default()
	want.Data = "/var/lib/lmwarden"
	want.TLS = TLS{Certificate: "/etc/warden/tls/clients.crt", Key: "/etc/warden/tls/clients.key"}
	want.Admin.TLS = TLS{Certificate: "/etc/warden/tls/admin.crt", Key: "/etc/warden/tls/admin.key"}
	want.Admin.Password = NewSecret("env:ADMIN_PASSWORD_HASH")
	want.Keys = []Key{{Name: "ci", Models: []string{"qwen3-*"}, InFlight: 8, PerMinute: 120, Priority: Batch}}
	if err := want.Keys[0].Hash.UnmarshalText([]byte("sha256:" + strings.Repeat("0f1e2d3c4b5a69788796a5b4c3d2e1f0", 2))); err != nil {
		t.Fatal(err)
	}
	want.Models = []Model{{
		Name: "qwen3-4b-dp4", ServedName: "Qwen/Qwen3-4B-Instruct-2507", Aliases: []string{DefaultAlias}, Shadow: "affinity",
		InFlight: 32, PerMinute: 600,
		Engines: []Engine{{
			URL: parseURL(t, "http://127.0.0.1:8000"), Ranks: 4, APIKey: NewSecret("env:ENGINE_KEY"),
			KVEvents: Endpoint{"127.0.0.1", 5557}, KVEventsReplay: Endpoint{"127.0.0.1", 5657},
		}},
	}}
	want.Tracing.Endpoint, want.Tracing.CA = "http://127.0.0.1:4318", "/etc/warden/tls/collector.pem"
	want.Tracing.Headers = []Header{{Name: "Authorization", Value: NewSecret("env:COLLECTOR_KEY")}}
	want.Fill()
	if diff := cmp.Diff(want, c, sameConfig); diff != "" {
		t.Error(diff)
	}
	var check func(kind reflect.Type, path string)
	check = func(kind reflect.Type, path string) {
		if kind.Kind() == reflect.Slice {
			kind, path = kind.Elem(), path+"[0]"
		}
		if kind.Kind() != reflect.Struct || reflect.PointerTo(kind).Implements(textType) {
			return
		}
		for i, key := range keys(kind) {
			at := join(path, key)
			if _, ok := c.source.places[at]; !ok {
				t.Errorf("the example has no %s", at)
			}
			check(kind.Field(i).Type, at)
		}
	}
	check(reflect.TypeFor[Config](), "")
}

func TestAccessIsChecked(t *testing.T) {
	const hash = "sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"
	for _, test := range []struct{ text, want string }{
		{"keys: [{name: a, hash: " + hash + "}, {name: a, hash: " + strings.Replace(hash, "0f", "1f", 1) + "}]", `keys[1].name: the name "a" is another key's`},
		{"keys: [{name: a, hash: " + hash + "}, {name: b, hash: " + hash + "}]", `keys[1].hash: this is the key of "a"`},
		{"keys: [{hash: " + hash + "}]", "keys[0].name: no name"},
		{"keys: [{name: a}]", "keys[0].hash: no hash"},
		{"keys: [{name: a, hash: lmw_secret}]", "this is not the hash of a key"},
		{"keys: [{name: a, hash: " + hash + ", in_flight: -1, per_minute: -1}]", "keys[0].per_minute: -1 requests a minute"},
		{"keys: [{name: a, hash: " + hash + ", priority: low}]", `unknown priority "low"`},
		{"tls: {certificate: a.crt}", "tls: a certificate needs its key"},
		{"admin: {tls: {key: a.key}}", "admin.tls: a certificate needs its key"},
		{"admin: {password: hunter2}", "admin.password: this is not the hash of a password"},
		{"admin: {listen: '0.0.0.0:8101', password: 'pbkdf2-sha256:600000:c2FsdCBhbmQgcGVwcGVyLg:" + strings.Repeat("A", 43) + "'}", ""},
	} {
		c, err := Parse("w.yaml", []byte(test.text+"\nmodels: [{engines: [{url: 'http://127.0.0.1:8000'}]}]\n"))
		if err == nil {
			err = c.Validate(policies)
		}
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.text, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: error %v, want %q", test.text, err, test.want)
		}
		for _, secret := range []string{"lmw_secret", "hunter2"} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%q stands in %v", secret, err)
			}
		}
	}
}

func TestLimitsOfModelsAreChecked(t *testing.T) {
	for in, want := range map[string]string{
		"in_flight: -1":  "models[0].in_flight: -1 requests; write a number from 1",
		"per_minute: -1": "models[0].per_minute: -1 requests a minute; write a number from 1",
		"waiting: -1":    "models[0].waiting: -1 requests; write a number from 1, or leave it out for limits.waiting",
	} {
		c, err := Parse("w.yaml", []byte("models: [{"+in+", engines: [{url: 'http://127.0.0.1:8000'}]}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(policies); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", in, err, want)
		}
	}
}

func TestKVEventsAreChecked(t *testing.T) {
	for in, want := range map[string]string{
		`kv_events: "tcp://*:5557"`:            `"tcp://*:5557" is not the address of a socket`,
		"kv_events: gpu:5557":                  "tcp:// with the engine's host",
		"kv_events: tcp://gpu":                 "tcp:// with the engine's host",
		"kv_events: tcp://gpu:0":               "a port from 1",
		"ranks: 4, kv_events: tcp://gpu:65533": "kv_events: tcp://gpu:65533 leaves no port for each of 4 ranks; the last would be 65536",
		"kv_events_replay: tcp://gpu:5657":     "nothing to send again",
		"ranks: 4, kv_events: tcp://gpu:5557, kv_events_replay: tcp://gpu:5560":   "less than 4 ports away",
		"ranks: 4, kv_events: tcp://gpu:5557, kv_events_replay: tcp://gpu:5561":   "",
		"ranks: 4, kv_events: tcp://gpu:5557, kv_events_replay: tcp://other:5557": "",
	} {
		c, err := Parse("w.yaml", []byte("models: [{engines: [{url: http://gpu:8000, "+in+"}]}]"))
		if err == nil {
			err = c.Validate(policies)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", in, err, want)
		}
	}
	first := Endpoint{"::1", 5557}
	if got := first.Address(3); got != "[::1]:5560" {
		t.Error(got)
	}
}

func TestTracingIsChecked(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"{endpoint: 'http://collector:4318/otlp', sample: 1, headers: [{name: Authorization, value: Bearer x}]}", ""},
		{"{sample: .25}", ""},
		{"{endpoint: 'collector:4318'}", "tracing.endpoint: this is not the address of a collector"},
		{"{endpoint: 'http://a:b@collector'}", "tracing.endpoint: this is not the address of a collector"},
		{"{sample: 10}", "tracing.sample: 10 is not a share"},
		{"{sample: -0.1}", "tracing.sample: -0.1 is not a share"},
		{"{sample: all}", `tracing.sample: the text "all" stands where a number belongs`},
		{"{sample: .nan}", "tracing.sample: something else stands where a number belongs"},
		{"{headers: [{name: 'a b', value: c}]}", `tracing.headers[0].name: "a b" is not the name of a header`},
		{"{headers: [{name: a, value: 'env:WARDEN_TEST_UNSET'}]}", "tracing.headers[0].value: the secret's environment variable"},
	} {
		c, err := Parse("w.yaml", []byte("tracing: "+test.text+"\nmodels: [{engines: [{url: 'http://127.0.0.1:8000'}]}]\n"))
		if err == nil {
			err = c.Validate(policies)
		}
		if test.want == "" && err != nil || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: error %v, want %q", test.text, err, test.want)
		}
	}
}

func TestLoadNamesAMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	_, err := Load(path)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

func TestValuesAsText(t *testing.T) {
	for in, want := range map[string]string{"600s": "10m", "90m": "1h30m", "1h": "1h", "1500ms": "1.5s", "61s": "1m1s"} {
		var d Duration
		if err := d.UnmarshalText([]byte(in)); err != nil || d.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, d, err, want)
		}
	}
	for in, want := range map[string]string{"1024KiB": "1MiB", "1500B": "1500B", "3GiB": "3GiB", "64 MiB": "64MiB"} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(in)); err != nil || b.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, b, err, want)
		}
	}
	for _, in := range []string{"", "8GB", "0B", "-1MiB", "99999999999GiB", "1.5MiB", "MiB"} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("size %q accepted as %d", in, b)
		}
	}
	for in, want := range map[string]string{
		"http://a:8000/": "http://a:8000", "http://a/v1": "http://a", "http://a/v1/": "http://a", "http://a/llm//v1": "http://a/llm",
	} {
		var u URL
		if err := u.UnmarshalText([]byte(in)); err != nil || u.String() != want {
			t.Errorf("URL %q read as %q, %v; want %q", in, u, err, want)
		}
	}
	for _, in := range []string{"", "gpu:8000", "ftp://a", "http://", "http://a?x=1", "http://a#f", "http://a:0", "http://a:99999", "http://u:p@a", "http://a b"} {
		var u URL
		if err := u.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("URL %q accepted as %s", in, u)
		}
	}
}

// FuzzParse looks for panics and for configurations that do not survive being
// printed and read again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("models:\n  - name: *a\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? {a: b}\n: c\n- d"))
	f.Add([]byte("limits: {body: |\n  64MiB\n}"))
	f.Add([]byte("\xef\xbb\xbflisten: \"\\ud800\"\n...\n%YAML 1.1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f.yaml", text)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		_ = c.Validate(policies)
		for i := range c.Models {
			for j := range c.Models[i].Engines {
				c.Models[i].Engines[j].APIKey = Secret{} // not printed
			}
		}
		printed, err := c.Print()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("printed", printed)
		if err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		if diff := cmp.Diff(c, again, sameConfig); diff != "" {
			t.Errorf("%s\n%s", diff, printed)
		}
	})
}
