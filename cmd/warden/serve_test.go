package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// socket is a listener that outlives the processes that accept on it, as one of
// systemd's does.
func socket(t *testing.T) (address string, file *os.File) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if file, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return l.Addr().String(), file
}

// process is a warden that runs.
type process struct {
	*exec.Cmd
	stop func() error
	log  bytes.Buffer // complete when it has stopped
}

// begin runs this test binary as warden, with sockets as systemd hands them over;
// names are those of the sockets.
func begin(t *testing.T, names string, sockets []*os.File, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	warden := filepath.Join(t.TempDir(), "warden") // TestMain knows the command by its name
	if err := os.Symlink(self, warden); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, warden}, args...)...)}
	p.Env = append(os.Environ(), fmt.Sprint("LISTEN_FDS=", len(sockets)), "LISTEN_FDNAMES="+names)
	p.ExtraFiles = sockets
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Stderr = in
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	listening, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		defer out.Close()
		seen := sync.OnceFunc(func() { close(listening) })
		defer seen()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(&p.log, lines.Text())
			if strings.Contains(lines.Text(), "listening") {
				seen()
			}
		}
	}()
	p.stop = sync.OnceValue(func() error {
		p.Process.Signal(syscall.SIGTERM)
		<-read
		return p.Wait()
	})
	t.Cleanup(func() { p.stop() })
	<-listening
	return p
}

const turn = `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":8}`

// While a process ends and the next one begins, connections wait in the socket:
// each is answered, and none is refused.
func TestARestartOnAnInheritedSocketRefusesNobody(t *testing.T) {
	engineAddress, engineSocket := socket(t)
	engineSocket.Close()
	engine := begin(t, "", nil, "sim", "--listen", engineAddress, "--replicas", "2", "--model", "tiny", "--speed", "20")
	clients, clientsSocket := socket(t)
	_, adminSocket := socket(t)
	data := t.TempDir()
	serve := func() *process {
		return begin(t, "clients:admin", []*os.File{clientsSocket, adminSocket},
			"serve", "--engine", "http://"+engineAddress, "--data", data, "--listen", "127.0.0.1:1")
	}
	gateway := serve()

	over := make(chan struct{})
	answers := make(chan struct{}, 1<<16) // more than there will be
	var served, told atomic.Int64
	var talkers sync.WaitGroup
	for n := range 8 {
		talkers.Go(func() {
			// Half of them keep their connection, half connect for each request.
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: n%2 == 0}, Timeout: time.Minute}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-over:
					return
				default:
				}
				req, err := http.NewRequest(http.MethodPost, "http://"+clients+"/v1/chat/completions", strings.NewReader(turn))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("X-Session-Id", fmt.Sprint("session-", n))
				res, err := client.Do(req)
				if err != nil {
					t.Errorf("no answer: %v", err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				switch {
				case err != nil:
					t.Errorf("a cut answer: %v", err)
				case res.StatusCode == http.StatusOK:
					served.Add(1)
					answers <- struct{}{}
				case res.Header.Get("X-Warden-Error") == "stopping": // it took a second to come on its connection
					told.Add(1)
				default:
					t.Errorf("%s %s", res.Status, body)
				}
			}
		})
	}
	given := make(chan struct{})
	go func() { defer close(given); talkers.Wait() }()
	for range 2 {
		for range len(answers) + 20 {
			select {
			case <-answers:
			case <-given:
			}
		}
		if err := gateway.stop(); err != nil {
			t.Errorf("%v\n%s", err, &gateway.log)
		}
		gateway = serve()
	}
	close(over)
	<-given
	if err := gateway.stop(); err != nil {
		t.Errorf("%v\n%s", err, &gateway.log)
	}
	if err := engine.stop(); err != nil {
		t.Errorf("the engine: %v\n%s", err, &engine.log)
	}
	t.Logf("%d requests served, %d told to come back", served.Load(), told.Load())
}

func TestASocketWithAStrangeNameIsSaid(t *testing.T) {
	_, file := socket(t)
	p := begin(t, "warden.socket", []*os.File{file}, "serve", "--engine", "http://127.0.0.1:1", "--data", ":memory:")
	if err := p.stop(); err == nil || !strings.Contains(p.log.String(), "there is no use for warden.socket; set FileDescriptorName=clients or admin") {
		t.Errorf("%v\n%s", err, &p.log)
	}
}
