package faults

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lmwarden/internal/app"
	"lmwarden/internal/config"
)

// The environment of a child process: some faults need a process with limits of
// its own.
const (
	childEnv  = "LMWARDEN_FAULTS_CHILD"
	engineEnv = "LMWARDEN_FAULTS_ENGINE"
	dataEnv   = "LMWARDEN_FAULTS_DATA"
	limitEnv  = "LMWARDEN_FAULTS_LIMIT"
)

// children are what a child process may be.
var children = map[string]func() int{
	"few files":  func() int { return limited(syscall.RLIMIT_NOFILE) },
	"small disk": func() int { return limited(syscall.RLIMIT_FSIZE) },
}

// limited runs a gateway under a limit until its standard input ends. It prints
// its two addresses.
func limited(resource int) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	limit, err := strconv.ParseUint(os.Getenv(limitEnv), 10, 64)
	if err != nil {
		return fail(err)
	}
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen, cfg.Data = "127.0.0.1:0", "127.0.0.1:0", config.MemoryOnly
	if dir := os.Getenv(dataEnv); dir != "" {
		cfg.Data = dir
	}
	cfg.ScrapeInterval = config.Duration(50 * time.Millisecond)
	var e config.Engine
	if err := e.URL.UnmarshalText([]byte(os.Getenv(engineEnv))); err != nil {
		return fail(err)
	}
	cfg.Models = []config.Model{{Engines: []config.Engine{e}}}
	cfg.Fill()
	if err := cfg.Validate(app.Policies()); err != nil {
		return fail(err)
	}
	if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fail(err)
	}
	g, err := app.NewGateway(cfg, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	if err != nil {
		return fail(err)
	}
	if err := g.Start(); err != nil {
		return fail(err)
	}
	fmt.Println(g.URL(), g.AdminURL())
	io.Copy(io.Discard, os.Stdin)
	if err := g.Stop(); err != nil {
		return fail(err)
	}
	return 0
}

// child is a gateway in a process of its own.
type child struct {
	t          testing.TB
	url, admin string
	client     *http.Client
	log        *record
	stop       func()
}

func startChild(t testing.TB, kind string, limit int, e *engine, data string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+kind, engineEnv+"="+e.url(), dataEnv+"="+data, limitEnv+"="+strconv.Itoa(limit))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, log: &record{}, client: &http.Client{Transport: &http.Transport{}}}
	cmd.Stderr = c.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.stop = sync.OnceFunc(func() {
		c.client.CloseIdleConnections()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gateway's process: %v", err)
		}
	})
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Logf("the end of the gateway's log:\n%s", c.log.tail())
		}
	})
	if _, err := fmt.Fscan(bufio.NewReader(out), &c.url, &c.admin); err != nil {
		t.Fatalf("the gateway's process did not start: %v: %s", err, c.log)
	}
	await(t, "the replica to be ready", func() error { return c.ready() })
	return c
}

// ready says why the only replica is not ready.
func (c *child) ready() error {
	res, err := c.client.Get(c.admin + "/api/models")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	var m struct{ Models []modelRow }
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	if len(m.Models) != 1 || len(m.Models[0].Replicas) != 1 {
		return errors.New("no replica yet")
	}
	if s := m.Models[0].Replicas[0].State; s != "ready" {
		return fmt.Errorf("it is %s", s)
	}
	return nil
}

func (c *child) turn(session string) (answer, error) {
	req, err := http.NewRequest(http.MethodPost, c.url+chat.path, strings.NewReader(chat.request("hello", true, "")))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("X-Session-Id", session)
	res, err := c.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text), err}, nil
}

// A gateway that has no file descriptors left says so, blames no engine for it,
// and goes on when it has some again.
func TestNoFilesLeftIsNotTheEnginesFault(t *testing.T) {
	t.Parallel()
	// An engine that keeps no connection, so that each attempt and each probe needs
	// a file.
	closing := func(s script) script { return func(c *call) { s(c); c.close() } }
	e := newEngine(t, 1, closing(reply))
	for path, s := range e.probes {
		e.probe(path, closing(s))
	}
	g := startChild(t, "few files", 64, e, "")
	if a, err := g.turn("one"); err != nil || a.status != 200 {
		t.Fatalf("got %d, %v", a.status, err)
	}
	var idle []net.Conn
	closeAll := func() {
		for _, c := range idle {
			c.Close()
		}
	}
	defer closeAll()
	for range 200 {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	await(t, "the log to say that files ran out", func() error {
		if !strings.Contains(g.log.String(), "too many open files") {
			return errors.New("it does not")
		}
		return nil
	})
	for range 20 {
		if err := g.ready(); err != nil {
			t.Errorf("the engine is blamed: %v", err)
			break
		}
		g.turn("one")
	}
	closeAll()
	await(t, "the gateway to serve again", func() error {
		a, err := g.turn("two")
		if err == nil && a.status != 200 {
			err = fmt.Errorf("got %d", a.status)
		}
		return err
	})
}

// A disk that is full costs the homes of a restart, nothing else, is said once,
// and is over when there is room again.
func TestAFullDiskStopsNothing(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skipf("a device that is always full is needed: %v", err)
	}
	data := t.TempDir()
	// A new table is written beside the old one. This one has no room.
	if err := os.Symlink("/dev/full", filepath.Join(data, "conversations.tmp")); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, 1, reply)
	g := start(t, func(c *config.Config) { c.Data = data }, e)
	saved := func() error {
		if !strings.Contains(g.log.String(), "is saved again") {
			return errors.New("not yet")
		}
		return nil
	}
	for i := range 20 {
		if a := g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", fmt.Sprint("session-", i)); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	await(t, "the table to be saved again", saved)
	if n := strings.Count(g.log.String(), "no space left on device"); n != 1 {
		t.Errorf("the full disk is said %d times", n)
	}
}

// The same where the table has begun to grow: what was cut in the midst of a
// record is read up to there.
func TestATableThatCannotGrowKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	e := newEngine(t, 1, reply)
	g := startChild(t, "small disk", 8<<10, e, data)
	if a, err := g.turn("session-0"); err != nil || a.status != 200 {
		t.Fatalf("got %d %v", a.status, err)
	}
	await(t, "the first save", func() error {
		_, err := os.Stat(filepath.Join(data, "conversations"))
		return err
	})
	n := 1
	await(t, "the table to be full", func() error {
		for range 20 {
			if a, err := g.turn(fmt.Sprint("session-", n)); err != nil || a.status != 200 {
				t.Fatalf("turn %d: %d %v", n, a.status, err)
			}
			n++
		}
		if !strings.Contains(g.log.String(), "is not saved") {
			return fmt.Errorf("after %d turns it is not", n)
		}
		return nil
	})
	if a, err := g.turn("session-0"); err != nil || a.decision() != "stayed" {
		t.Errorf("after the disk was full: %s %v", a.decision(), err)
	}
	g.stop()

	next := start(t, func(c *config.Config) { c.Data = data }, e)
	if a := next.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", "session-0"); a.decision() != "stayed" {
		t.Errorf("in the next life of the gateway: %s", a.decision())
	}
	if found, _ := filepath.Glob(filepath.Join(data, "*unreadable*")); len(found) > 0 {
		t.Errorf("the table was not readable: %v", found)
	}
}

// Something in the place of the table is moved aside, not written over.
func TestAFolderInThePlaceOfTheTable(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "conversations"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(data, "conversations", "precious"), "text")
	g := start(t, func(c *config.Config) { c.Data = data }, newEngine(t, 1, reply))
	if a := g.post(chat.path, chat.request("hello", true, ""), "X-Session-Id", "one"); a.status != 200 {
		t.Errorf("got %d", a.status)
	}
	if found, _ := filepath.Glob(filepath.Join(data, "conversations.unreadable-*", "precious")); len(found) != 1 {
		t.Errorf("the folder is gone")
	}
}

// Idle connections cost some memory and nothing else.
func TestThousandsOfIdleConnectionsAreKept(t *testing.T) {
	// Not parallel: it needs the files that others use.
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// Both ends are ours.
	n := min(10_000, int(limit.Cur)/2-500)
	if raced {
		n = min(n, 500)
	}
	if n < 100 {
		t.Skipf("only %d file descriptors are allowed", limit.Cur)
	}
	g := start(t, nil, newEngine(t, 1, reply))
	before := heap()
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	body := chat.request("hello", false, "")
	ask := func(c net.Conn) error {
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		c.SetReadDeadline(time.Now().Add(patience))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	for i := range n {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.URL(), "http://"))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		idle = append(idle, c)
	}
	// Each has been used once, as an agent's between two turns.
	var all sync.WaitGroup
	for part := range 16 {
		all.Go(func() {
			for i := part; i < n; i += 16 {
				if err := ask(idle[i]); err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	g.settled(map[string]int{"ok": n})
	each := (heap() - before) / int64(n)
	t.Logf("%d idle connections, %d bytes of heap each", n, each)
	if each > 32<<10 {
		t.Errorf("an idle connection costs %d bytes", each)
	}
	for i := 0; i < n; i += n / 20 {
		if err := ask(idle[i]); err != nil {
			t.Errorf("connection %d, used again: %v", i, err)
		}
	}
}

// Clients that send a byte now and then, or take none, hold up nobody but
// themselves, and memory for what they do not take is bounded.
func TestSlowClientsHoldUpNobody(t *testing.T) {
	// Not parallel: it measures the process.
	event := chat.events(strings.Repeat("x", 128<<10))[1]
	endless := func(c *call) {
		if !strings.Contains(string(c.body), "endless") {
			reply(c)
			return
		}
		c.begin()
		for {
			if _, err := io.WriteString(c.conn, fmt.Sprintf("%x\r\n%s\r\n", len(event), event)); err != nil {
				c.close()
				return
			}
		}
	}
	g := start(t, nil, newEngine(t, 1, endless))
	before := heap()
	const slow, endlessly = 50, 2
	for range slow {
		fmt.Fprint(g.dial(), "POST /v1/chat/completions HTT")
		fmt.Fprint(g.dial(), "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		fmt.Fprint(g.dial(), "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
	}
	for i := range endlessly {
		body := chat.request(fmt.Sprint("endless ", i), true, "")
		fmt.Fprintf(g.dial(), "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Data-Parallel-Rank: 0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	await(t, "the endless streams", func() error {
		if n := g.model().InFlight; n != endlessly {
			return fmt.Errorf("%d are in flight", n)
		}
		return nil
	})
	for i := range 20 {
		if a := g.post(chat.path, chat.request(fmt.Sprint("hello ", i), true, ""), "X-Data-Parallel-Rank", "0"); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	if grown := (heap() - before) / (3*slow + endlessly); grown > 256<<10 {
		t.Errorf("a slow client costs %d bytes", grown)
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeAddress is an address on loopback that was free a moment ago.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
