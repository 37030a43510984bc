package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"lmwarden/internal/config"
	"lmwarden/internal/enginesim/server"
)

// configFile is a configuration on disk that a test changes.
type configFile struct {
	t    *testing.T
	path string
}

// write writes the file anew: what goes before the model, and its engines.
func (f configFile) write(head string, engines ...*simEngine) {
	f.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\ndata: \":memory:\"\nscrape_interval: 50ms\nstop_timeout: 5s\n%smodels:\n- name: %s\n  engines:\n", head, testModel)
	for _, e := range engines {
		fmt.Fprintf(&b, "  - url: %s\n", e.url())
	}
	f.text(b.String())
}

func (f configFile) text(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f configFile) read() (*config.Config, error) { return configure(ServeOptions{Config: f.path}) }

// startFromFile runs a gateway from a file until the test ends.
func startFromFile(t *testing.T, engines ...*simEngine) (*testGateway, configFile) {
	t.Helper()
	f := configFile{t, filepath.Join(t.TempDir(), "warden.yaml")}
	f.write("", engines...)
	cfg, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	return startGateway(t, nil, func(c *config.Config) { *c = *cfg }).awaitReady(), f
}

func (g *testGateway) reload(f configFile) {
	g.t.Helper()
	if err := g.Reload(g.t.Context(), f.read); err != nil {
		g.t.Fatal(err)
	}
}

// states are those of the replicas, in order.
func (g *testGateway) states() string {
	g.t.Helper()
	var m struct{ Replicas []struct{ URL, State string } }
	g.admin(http.MethodGet, "/api/models/"+testModel, "", &m)
	var list []string
	for _, r := range m.Replicas {
		list = append(list, r.State)
	}
	return strings.Join(list, " ")
}

func (g *testGateway) awaitStates(want string) {
	g.t.Helper()
	await(g.t, "the replicas", func() error {
		if got := g.states(); got != want {
			return fmt.Errorf("they are %q, not %q", got, want)
		}
		return nil
	})
}

func TestAReloadAddsAndRemovesEngines(t *testing.T) {
	slow := func(o *server.Options) { o.Speed = 1 }
	a, b, c := newEngine(t, 1, slow), newEngine(t, 1, slow), newEngine(t, 2, nil)
	g, file := startFromFile(t, a, b)
	g.awaitStates("ready ready")
	onA, onB := g.conversation("one"), g.conversation("two")
	onA.turn()
	onB.turn()

	// A long answer is on its way from b while b is taken out.
	body := `{"model":"tiny","stream":true,"max_tokens":300,"messages":[{"role":"user","content":"go on [[tokens 300]]"}]}`
	req, err := http.NewRequest(http.MethodPost, g.URL()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Data-Parallel-Rank", "1")
	res, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	file.write("", c, a)
	g.reload(file)
	g.awaitStates("ready ready ready")
	if r := onA.turn(); r.decision() != "stayed" || r.replica() != "2" {
		t.Errorf("the conversation of the engine that stays: %s on %s, want stayed on 2", r.decision(), r.replica())
	}
	if r := onB.turn(); r.decision() != "moved" || r.replica() == "2" {
		t.Errorf("the conversation of the engine that went: %s on %s, want moved to the new one", r.decision(), r.replica())
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
		t.Errorf("the open answer did not end: %v, …%q", err, text[max(0, len(text)-80):])
	}
	g.checkNothingInFlight()
	for _, want := range []string{"configuration reloaded", "engine " + c.url() + " added", "engine " + b.url() + " removed"} {
		if !strings.Contains(g.log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}

func TestABadFileChangesNothing(t *testing.T) {
	e := newEngine(t, 2, nil)
	g, file := startFromFile(t, e)
	g.awaitStates("ready ready")
	c := g.conversation("opening")
	c.turn()
	for name, bad := range map[string]struct{ text, want string }{
		"no YAML":           {"listen: [", "warden.yaml:"},
		"an unknown key":    {"listen: 127.0.0.1:0\nmodles: []\n", "warden.yaml:2:1: "},
		"an unknown policy": {"models:\n- policy: best\n  engines: [{url: \"http://127.0.0.1:1\"}]\n", "warden.yaml:2:"},
		"no engine":         {"models:\n- name: tiny\n", "warden.yaml:"},
		"a missing key":     {"models:\n- engines: [{url: \"http://127.0.0.1:1\", api_key: \"env:LMWARDEN_NOT_SET\"}]\n", "LMWARDEN_NOT_SET"},
	} {
		t.Run(name, func(t *testing.T) {
			file.text(bad.text)
			if err := g.Reload(t.Context(), file.read); err == nil || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("got %v, want ...%s...", err, bad.want)
			}
			if r := g.send(http.MethodGet, g.AdminURL()+"/readyz", nil); r.status != http.StatusOK || !bytes.HasPrefix(r.body, []byte("ready\n")) || !bytes.Contains(r.body, []byte(bad.want)) {
				t.Errorf("readyz: status %d: %s", r.status, r.body)
			}
			if page := string(g.send(http.MethodGet, g.AdminURL()+"/", nil).body); !strings.Contains(page, "was not reloaded") || !strings.Contains(page, bad.want) {
				t.Error("the page does not say so")
			}
			if !strings.Contains(g.log.String(), bad.want) {
				t.Error("the log does not say so")
			}
			if r := c.turn(); r.decision() != "stayed" || g.states() != "ready ready" {
				t.Errorf("%s, replicas %s", r.decision(), g.states())
			}
		})
	}
	if err := os.Remove(file.path); err != nil {
		t.Fatal(err)
	}
	if g.Reload(t.Context(), file.read) == nil {
		t.Error("a file that is not there was taken")
	}

	file.write("", e)
	g.reload(file)
	if r := g.send(http.MethodGet, g.AdminURL()+"/readyz", nil); string(r.body) != "ready\n" {
		t.Errorf("readyz after a good file: %s", r.body)
	}
	if r := c.turn(); r.decision() != "stayed" {
		t.Errorf("after a good file: %s", r.decision())
	}
}

func TestWhatWaitsForARestartIsSaid(t *testing.T) {
	e := newEngine(t, 1, nil)
	g, file := startFromFile(t, e)
	file.write("limits: {body: 1MiB}\ntimeouts: {stream_idle: 3m, stuck: 20s}\n", e)
	g.reload(file)
	const want = "only after a restart: limits.body, timeouts.stream_idle."
	if r := g.send(http.MethodGet, g.AdminURL()+"/readyz", nil); !bytes.Contains(r.body, []byte(want)) {
		t.Errorf("readyz: %s", r.body)
	}
	if !strings.Contains(g.log.String(), `"keys":"limits.body, timeouts.stream_idle"`) {
		t.Error("the log does not say so")
	}
	file.write("", e)
	g.reload(file)
	if r := g.send(http.MethodGet, g.AdminURL()+"/readyz", nil); string(r.body) != "ready\n" {
		t.Errorf("readyz when all is as at the start: %s", r.body)
	}
}

// The command reads its file again for each SIGHUP.
func TestServeReloadsOnASignal(t *testing.T) {
	a, b := newEngine(t, 1, nil), newEngine(t, 3, nil)
	file := configFile{t, filepath.Join(t.TempDir(), "warden.yaml")}
	file.write("", a)
	log := &testLog{}
	ctx, cancel := context.WithCancel(context.Background())
	reload := make(chan os.Signal)
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, IO{Out: io.Discard, Err: log}, ServeOptions{Config: file.path}, reload) }()

	g := &testGateway{t: t, client: &http.Client{Transport: &http.Transport{}}}
	var admin string
	await(t, "the gateway to listen", func() error {
		m := regexp.MustCompile(`admin\S* \S*?(http://[0-9.:]+)`).FindStringSubmatch(log.String())
		if m == nil {
			return fmt.Errorf("log: %s", log)
		}
		admin = m[1]
		return nil
	})
	replicas := func(want int) {
		t.Helper()
		await(t, "the replicas", func() error {
			r := g.send(http.MethodGet, admin+"/api/models/"+testModel, nil)
			if n := bytes.Count(r.body, []byte(`"state":"ready"`)); n != want {
				return fmt.Errorf("%d are ready, want %d", n, want)
			}
			return nil
		})
	}
	replicas(1)
	file.write("", b, a)
	reload <- syscall.SIGHUP
	replicas(4)
	file.text("nonsense")
	reload <- syscall.SIGHUP
	replicas(4)
	file.write("", b)
	reload <- syscall.SIGHUP
	replicas(3)
	g.client.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestHomesFollowTheirEnginesIntoAnotherOrder(t *testing.T) {
	a, b := newEngine(t, 1, nil), newEngine(t, 2, nil)
	data := t.TempDir()
	keep := func(c *config.Config) { c.Data = data }
	first := startGateway(t, []string{a.url(), b.url()}, keep).awaitReady()
	first.awaitStates("ready ready ready")
	homes := map[*conversation]string{}
	for i := range 6 {
		c := first.conversation(fmt.Sprintf("opening %d", i))
		homes[c] = c.turn().replica()
	}
	first.close()

	second := startGateway(t, []string{b.url(), a.url()}, keep).awaitReady()
	second.awaitStates("ready ready ready")
	now := map[string]string{"0": "2", "1": "0", "2": "1"}
	for c, home := range homes {
		c.g = second
		if r := c.turn(); r.decision() != "stayed" || r.replica() != now[home] {
			t.Errorf("a conversation of replica %s: %s on %s, want stayed on %s", home, r.decision(), r.replica(), now[home])
		}
	}
}

// Engines come and go under conversations of which none may notice.
func TestTurnsGoOnWhileEnginesComeAndGo(t *testing.T) {
	all := []*simEngine{newEngine(t, 1, nil), newEngine(t, 2, nil), newEngine(t, 1, nil)}
	g, file := startFromFile(t, all...)
	done := make(chan bool)
	var talking sync.WaitGroup
	for i := range 6 {
		talking.Go(func() {
			c := g.conversation(fmt.Sprintf("opening %d", i))
			for {
				select {
				case <-done:
					return
				default:
					c.turn()
				}
			}
		})
	}
	for i := range 12 {
		var engines []*simEngine
		for n := range all {
			if i%3 != n || i%2 == 0 {
				engines = append(engines, all[(n+i)%3])
			}
		}
		file.write("", engines...)
		g.reload(file)
		g.awaitStates(strings.TrimSpace(strings.Repeat("ready ", ranksOf(engines))))
	}
	close(done)
	talking.Wait()
	g.checkNothingInFlight()
}

func ranksOf(engines []*simEngine) (n int) {
	for _, e := range engines {
		n += e.options.Replicas
	}
	return n
}
