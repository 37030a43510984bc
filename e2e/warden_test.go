package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// wardenBinary is built once per run by TestMain.
var wardenBinary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "warden-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		wardenBinary = filepath.Join(dir, "warden")
		build := exec.Command("go", "build", "-o", wardenBinary, "./cmd/warden")
		build.Dir = ".."
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build warden: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// process is a running warden command.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu  sync.Mutex
	log bytes.Buffer // what it wrote to standard error
}

// start runs a warden command until the test ends. It returns the addresses it
// listens on, by the name that its log gives them.
func start(t *testing.T, listeners int, args ...string) (*process, map[string]string) {
	t.Helper()
	p := &process{cmd: exec.Command(wardenBinary, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("log of warden %s:\n%s", strings.Join(args, " "), p.output())
		}
	})

	found := make(chan [2]string, listeners)
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.mu.Lock()
			p.log.Write(lines.Bytes())
			p.log.WriteByte('\n')
			p.mu.Unlock()
			var line struct{ Msg, Listener, URL string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				select {
				case found <- [2]string{line.Listener, line.URL}:
				default:
				}
			}
		}
		p.cmd.Wait()
	}()
	addresses := map[string]string{}
	for deadline := time.After(20 * time.Second); len(addresses) < listeners; {
		select {
		case a := <-found:
			addresses[a[0]] = a[1]
		case <-p.done:
			t.Fatalf("warden %s ended early:\n%s", strings.Join(args, " "), p.output())
		case <-deadline:
			t.Fatalf("warden %s did not listen within 20 s:\n%s", strings.Join(args, " "), p.output())
		}
	}
	return p, addresses
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// stop ends the process gracefully and waits for it.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		t.Errorf("%v did not stop within 20 s of SIGTERM", p.cmd.Args)
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// gateway is a running warden serve.
type gateway struct {
	*process
	url, admin string
}

// startSim runs a simulated vLLM and returns the URLs of its servers.
func startSim(t *testing.T, servers int, args ...string) []string {
	t.Helper()
	_, addresses := start(t, servers, append([]string{"sim", "--listen", "127.0.0.1:0", "--preset", "tiny-fast", "--kv-tokens", "2000000", "--max-model-len", "1000000", "--log-format", "json"}, args...)...)
	urls := make([]string, servers)
	for i := range urls {
		urls[i] = addresses[fmt.Sprintf("engine %d", i)]
	}
	return urls
}

// startGateway runs a gateway in front of engines and waits until it is ready.
func startGateway(t *testing.T, engines []string, args ...string) *gateway {
	t.Helper()
	all := []string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json"}
	for _, e := range engines {
		all = append(all, "--engine", e)
	}
	p, addresses := start(t, 2, append(all, args...)...)
	g := &gateway{process: p, url: addresses["clients"], admin: addresses["admin"]}
	waitFor(t, "the gateway to be ready", func() error {
		res, err := http.Get(g.admin + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(res.Body)
			return fmt.Errorf("status %d: %s", res.StatusCode, body)
		}
		return nil
	})
	return g
}

// waitFor polls until check succeeds, 20 s at most.
func waitFor(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s: %v", what, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// conversation is a row of GET /api/conversations.
type conversation struct {
	ID           string `json:"id"`
	Home         *int   `json:"home"`
	Turns        int    `json:"turns"`
	PromptTokens int64  `json:"prompt_tokens"`
	CachedTokens int64  `json:"cached_tokens"`
	Source       string `json:"source"`
	Client       string `json:"client"`
	Parent       string `json:"parent"`
	InFlight     int    `json:"in_flight"`
	Spills       int    `json:"spills"`
	Moves        int    `json:"moves"`
}

// decision is a receipt of GET /api/decisions.
type decision struct {
	Conversation string `json:"conversation"`
	Replica      *int   `json:"replica"`
	Reason       string `json:"reason"`
}

func (g *gateway) get(t *testing.T, path string, into any) {
	t.Helper()
	res, err := http.Get(g.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: status %d, %v: %s", path, res.StatusCode, err, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("GET %s: %v: %s", path, err, body)
	}
}

func (g *gateway) conversations(t *testing.T) []conversation {
	t.Helper()
	var page struct{ Conversations []conversation }
	g.get(t, "/api/conversations?limit=1000", &page)
	return page.Conversations
}

// decisions returns the receipts, oldest first.
func (g *gateway) decisions(t *testing.T) []decision {
	t.Helper()
	var page struct{ Decisions []decision }
	g.get(t, "/api/decisions?limit=1000", &page)
	for i, j := 0, len(page.Decisions)-1; i < j; i, j = i+1, j-1 {
		page.Decisions[i], page.Decisions[j] = page.Decisions[j], page.Decisions[i]
	}
	return page.Decisions
}
