// Package wardentest runs warden commands built from this tree, as processes, for
// the end-to-end tests. What the tests check is not its business.
package wardentest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Binary is the path of a warden command.
type Binary string

// Main builds the command from the module that holds this one, says where it is
// and runs a package's tests. It returns the exit code.
func Main(m *testing.M, warden *Binary) int {
	dir, err := os.MkdirTemp("", "warden-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if *warden, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build(dir string) (Binary, error) {
	tests, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module of the tests: %w", err)
	}
	path := filepath.Join(dir, "warden")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/warden")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(tests)))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build warden: %w\n%s", err, out)
	}
	return Binary(path), nil
}

// Process is a running warden command.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu  sync.Mutex
	log bytes.Buffer // what it wrote to standard error
}

// Start runs a command until the test ends. It returns the URLs it listens on,
// by the name that its log gives them, when there are as many as asked for.
func (b Binary) Start(t *testing.T, listeners int, args ...string) (*Process, map[string]string) {
	t.Helper()
	p := &Process{cmd: exec.Command(string(b), args...), done: make(chan struct{})}
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
			t.Logf("log of warden %s:\n%s", strings.Join(args, " "), p.Log())
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
			t.Fatalf("warden %s ended early:\n%s", strings.Join(args, " "), p.Log())
		case <-deadline:
			t.Fatalf("warden %s did not listen within 20 s:\n%s", strings.Join(args, " "), p.Log())
		}
	}
	return p, addresses
}

// Log is what the process wrote so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// stop ends the process gracefully and waits for it.
func (p *Process) stop(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		t.Errorf("%v did not stop within 20 s of SIGTERM", p.cmd.Args)
	}
}

// Kill ends the process as kill -9 does.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Sim runs a simulated vLLM and returns the URLs of its servers.
func (b Binary) Sim(t *testing.T, servers int, args ...string) []string {
	t.Helper()
	_, addresses := b.Start(t, servers, append([]string{"sim", "--listen", "127.0.0.1:0", "--preset", "tiny-fast", "--kv-tokens", "2000000", "--max-model-len", "1000000", "--log-format", "json"}, args...)...)
	urls := make([]string, servers)
	for i := range urls {
		urls[i] = addresses[fmt.Sprintf("engine %d", i)]
	}
	return urls
}

// WaitFor polls until check succeeds.
func WaitFor(t *testing.T, limit time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s: %v", limit, what, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}
