package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// childEnv makes the test binary a service: it says what it inherited, and
// greets one client on each socket.
const childEnv = "LMWARDEN_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	all, err := Listeners()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Printf("%q, left in the environment: %q\n", names, os.Getenv("LISTEN_FDS")+os.Getenv("LISTEN_FDNAMES"))
	for _, name := range names {
		if c, err := all[name].Accept(); err == nil {
			fmt.Fprint(c, name)
			c.Close()
		}
	}
}

// service runs the child with sockets as systemd does; pid is an expression of
// the shell.
func service(t *testing.T, pid, count, names string, sockets ...net.Listener) (out string, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `LISTEN_PID=`+pid+` exec "$0"`, self)
	cmd.Env = append(os.Environ(), childEnv+"=1", "LISTEN_FDS="+count, "LISTEN_FDNAMES="+names)
	for _, l := range sockets {
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestSocketsAreInheritedByName(t *testing.T) {
	one, two := listen(t), listen(t)
	var clients []net.Conn
	for _, l := range []net.Listener{one, two} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	out, err := service(t, "$$", "2", "one:two", one, two)
	if err != nil || out != `["one" "two"], left in the environment: ""`+"\n" {
		t.Errorf("%v: %s", err, out)
	}
	for i, want := range []string{"one", "two"} {
		got := make([]byte, len(want))
		if _, err := clients[i].Read(got); err != nil || string(got) != want {
			t.Errorf("the client of socket %s read %q, %v", want, got, err)
		}
	}
}

func TestSocketsOfAnotherProcessAreLeftAlone(t *testing.T) {
	if out, err := service(t, "1", "1", "one", listen(t)); err != nil || !strings.HasPrefix(out, "[],") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestBadSocketsAreSaid(t *testing.T) {
	for _, c := range []struct {
		count, names string
		sockets      []net.Listener
		want         string
	}{
		{"many", "", nil, `LISTEN_FDS: strconv.ParseUint: parsing "many"`},
		{"-1", "", nil, "LISTEN_FDS"},
		{"2", "one:one", []net.Listener{listen(t), listen(t)}, `two have the name "one"`},
		{"2", "one:two", []net.Listener{listen(t)}, `number 2, "two", is no stream socket`},
	} {
		if out, err := service(t, "$$", c.count, c.names, c.sockets...); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("LISTEN_FDS=%s LISTEN_FDNAMES=%s: %v: %s; want %s", c.count, c.names, err, out, c.want)
		}
	}
}

// manager is the receiving end of notes.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

func note(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	b := make([]byte, 100)
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestNotes(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); err != nil {
		t.Errorf("without systemd: %v", err)
	}
	c := manager(t)
	if err := Notify("READY=1"); err != nil {
		t.Fatal(err)
	}
	if got := note(t, c); got != "READY=1" {
		t.Errorf("systemd got %q", got)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := Notify("READY=1"); err == nil {
		t.Error("a socket that is not there was no error")
	}
}

func TestTheWatchdogIsFedUntilTheEnd(t *testing.T) {
	c := manager(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	for _, none := range []string{"", "0", "x"} {
		t.Setenv("WATCHDOG_USEC", none)
		KeepAlive(ctx)
	}
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", "1")
	KeepAlive(ctx) // another process's
	t.Setenv("WATCHDOG_PID", "")
	go func() { defer close(ended); KeepAlive(ctx) }()
	for range 2 {
		if got := note(t, c); got != "WATCHDOG=1" {
			t.Errorf("systemd got %q", got)
		}
	}
	cancel()
	<-ended
}
