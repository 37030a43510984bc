// Package llamacpp checks the gateway in front of real llama-servers. The tests
// run when LLAMA_SERVER_BIN names the command, which `make test-llamacpp`
// installs.
package llamacpp

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

const (
	modelName   = "tiny"
	slots       = 2
	slotContext = trained
)

var warden wardentest.Binary // built by TestMain

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Getenv("LLAMA_SERVER_BIN") == "" {
			return m.Run() // every test skips itself
		}
		return wardentest.Main(m, &warden)
	}())
}

// engine is a llama-server that may be started again at the same address.
type engine struct {
	url, model string
	port       int
	cmd        *exec.Cmd
	done       chan struct{} // closed when the process has ended
	log        string
}

// start runs llama-servers until the test ends.
func start(t *testing.T, count int) []*engine {
	t.Helper()
	if os.Getenv("LLAMA_SERVER_BIN") == "" {
		t.Skip("LLAMA_SERVER_BIN is not set: run make test-llamacpp, which installs llama-server (150 MB), or set it to the path of one")
	}
	dir := t.TempDir()
	model := filepath.Join(dir, "model.gguf")
	if err := writeModel(model); err != nil {
		t.Fatal(err)
	}
	var engines []*engine
	for i := range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // when all have a port, which are then different ones
		port := l.Addr().(*net.TCPAddr).Port
		engines = append(engines, &engine{
			url: fmt.Sprintf("http://127.0.0.1:%d", port), port: port, model: model,
			log: filepath.Join(dir, fmt.Sprintf("log%d", i)),
		})
	}
	return engines
}

// run starts the process and waits until it is healthy.
func (e *engine) run(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(e.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e.cmd = exec.Command(os.Getenv("LLAMA_SERVER_BIN"), "-m", e.model, "--alias", modelName,
		"--host", "127.0.0.1", "--port", strconv.Itoa(e.port), "--metrics",
		"--parallel", strconv.Itoa(slots), "-c", strconv.Itoa(slots*slotContext),
		"--device", "none", "--threads", "1")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no life after the tests'
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, done := e.cmd, make(chan struct{})
	e.done = done
	go func() {
		defer close(done)
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
	})
	wardentest.WaitFor(t, time.Minute, "llama-server to be healthy", func() error {
		select {
		case <-done:
			text, _ := os.ReadFile(e.log)
			t.Fatalf("llama-server ended while it started:\n%s", text)
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/health", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	})
}

// kill ends the process as kill -9 does.
func (e *engine) kill() {
	e.cmd.Process.Kill()
	<-e.done
}

// behind runs a gateway in front of llama-servers.
func behind(t *testing.T, count int, args ...string) (*wardentest.Gateway, []*engine) {
	t.Helper()
	engines := start(t, count)
	var urls []string
	for _, e := range engines {
		e.run(t)
		urls = append(urls, e.url)
	}
	g := warden.Gateway(t, urls, args...)
	wardentest.WaitFor(t, 20*time.Second, "all replicas to be ready", func() error {
		for _, r := range g.Model(t, modelName).Replicas {
			if r.State != "ready" {
				return fmt.Errorf("replica %d is %s", r.Index, r.State)
			}
		}
		return nil
	})
	return g, engines
}
