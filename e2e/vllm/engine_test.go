// Package vllm checks the gateway in front of a real vLLM with two ranks. The
// tests run when VLLM_BIN names vLLM's command, which `make test-vllm` installs.
package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

const (
	modelName   = "tiny"
	ranks       = 2
	blockSize   = 32  // the CPU back end takes no smaller one
	rankBlocks  = 400 // few enough to be filled
	maxModelLen = 8192

	// startLimit is how long an engine may take to start: the first start after
	// the installation, on a busy machine.
	startLimit = 20 * time.Minute
)

var (
	warden wardentest.Binary // built by TestMain
	// shared is the engine of all tests, since a start takes a minute and more.
	// A test that ends it leaves the next start to the next test.
	shared *engine
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Getenv("VLLM_BIN") == "" {
			return m.Run() // every test skips itself
		}
		dir, err := os.MkdirTemp("", "warden-vllm-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if shared, err = newEngine(os.Getenv("VLLM_BIN"), dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer shared.stop()
		return wardentest.Main(m, &warden)
	}())
}

// engine is a vLLM server.
type engine struct {
	url  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended, nil before the first start

	bin, dir  string
	port, rpc int
	flags     []string // besides those of all
}

func newEngine(bin, dir string) (*engine, error) {
	bin, err := exec.LookPath(bin)
	if err != nil {
		return nil, fmt.Errorf("VLLM_BIN: %w", err)
	}
	e := &engine{bin: bin, dir: dir}
	for _, port := range []*int{&e.port, &e.rpc} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		*port = l.Addr().(*net.TCPAddr).Port
	}
	e.url = fmt.Sprintf("http://127.0.0.1:%d", e.port)
	return e, writeModel(dir)
}

// running returns the engine, started if it is not up. It skips the test when no
// engine is there to be started.
func running(t *testing.T) *engine {
	t.Helper()
	if shared == nil {
		t.Skip("VLLM_BIN is not set: run make test-vllm, which installs vLLM (6 GB), or set it to the path of a vllm command")
	}
	shared.start(t)
	return shared
}

// start does nothing when the engine is up. The address is always the same.
func (e *engine) start(t *testing.T) {
	t.Helper()
	if e.up() {
		return
	}
	log, err := os.OpenFile(filepath.Join(e.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e.cmd = exec.Command(e.bin, append([]string{"serve", e.dir,
		"--served-model-name", modelName, "--host", "127.0.0.1", "--port", strconv.Itoa(e.port),
		"--load-format", "dummy", "--dtype", "float32", "--enforce-eager",
		"--max-model-len", strconv.Itoa(maxModelLen),
		"--block-size", strconv.Itoa(blockSize), "--num-gpu-blocks-override", strconv.Itoa(rankBlocks),
		"--data-parallel-size", strconv.Itoa(ranks), "--data-parallel-rpc-port", strconv.Itoa(e.rpc),
		"--api-server-count", "1", "--enable-prompt-tokens-details"}, e.flags...)...)
	for _, v := range os.Environ() {
		// Among Python's is the one that makes it compile everything at each start.
		if !strings.HasPrefix(v, "VLLM_") && !strings.HasPrefix(v, "PYTHON") {
			e.cmd.Env = append(e.cmd.Env, v)
		}
	}
	e.cmd.Env = append(e.cmd.Env,
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_HOST_IP=127.0.0.1", "VLLM_SERVER_DEV_MODE=1", // the mode has the route that empties the cache
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	// A group of its own so that nothing of it stays, and no life after the tests'.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	begin := time.Now()
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, done := e.cmd, make(chan struct{})
	e.done = done
	go func() {
		defer close(done)
		cmd.Wait()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // workers that outlived it
	}()
	for e.healthy() != nil {
		select {
		case <-done:
			t.Fatalf("vLLM ended while it started:\n%s", e.log())
		case <-time.After(200 * time.Millisecond):
		}
		if time.Since(begin) > startLimit {
			t.Fatalf("vLLM did not start within %s:\n%s", startLimit, e.log())
		}
	}
	t.Logf("vLLM %s started in %.0f s", e.version(t), time.Since(begin).Seconds())
}

func (e *engine) up() bool {
	if e.done == nil {
		return false
	}
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

func (e *engine) healthy() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := get(ctx, e.url+"/health")
	return err
}

// stop ends the engine and waits until all that it started is gone.
func (e *engine) stop() {
	if !e.up() {
		return
	}
	e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.done:
	case <-time.After(20 * time.Second):
		e.cmd.Process.Kill()
		<-e.done
	}
}

// log is the end of what the engine wrote.
func (e *engine) log() string {
	b, err := os.ReadFile(filepath.Join(e.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-8<<10):])
}

// rankProcess is the process that computes for a rank, found by its title among
// the engine's descendants.
func (e *engine) rankProcess(t *testing.T, rank int) *os.Process {
	t.Helper()
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		// The name stands in brackets and may hold anything; state and parent follow.
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		parent, _ := strconv.Atoi(string(fields[1]))
		children[parent] = append(children[parent], pid)
	}
	title := fmt.Sprintf("EngineCore_DP%d", rank)
	for todo := []int{e.cmd.Process.Pid}; len(todo) > 0; todo = todo[1:] {
		todo = append(todo, children[todo[0]]...)
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", todo[0]))
		if err != nil || !bytes.Contains(b, []byte(title)) {
			continue
		}
		p, err := os.FindProcess(todo[0])
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	t.Fatalf("no descendant of vLLM, process %d, is called %s", e.cmd.Process.Pid, title)
	return nil
}

func (e *engine) version(t *testing.T) string {
	t.Helper()
	b, err := get(t.Context(), e.url+"/version")
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Version string }
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v.Version
}

// emptyCache drops all cached blocks of all ranks.
func (e *engine) emptyCache(t *testing.T) {
	t.Helper()
	res, err := http.Post(e.url+"/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || !bytes.Contains(body, []byte("true")) {
		t.Fatalf("reset of the prefix cache: status %d: %s", res.StatusCode, body)
	}
}

// metric is the sum of a metric's series of each rank.
func (e *engine) metric(t *testing.T, name string) [ranks]float64 {
	t.Helper()
	page, err := get(t.Context(), e.url+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	var sums [ranks]float64
	for line := range strings.Lines(string(page)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(series, name+"{") {
			continue
		}
		for rank := range sums {
			if strings.Contains(series, fmt.Sprintf(`engine="%d"`, rank)) {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatalf("%v in %q", err, line)
				}
				sums[rank] += v
			}
		}
	}
	return sums
}

// get returns the body of an answer that has to be 200.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d", url, res.StatusCode)
	}
	return body, err
}
