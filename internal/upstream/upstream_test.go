package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine has its connections to itself: serve is called for each with the
// number of connections before it. The connection is reset when serve returns.
func engine(t *testing.T, serve func(n int, c net.Conn, r *bufio.Reader)) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wg.Go(func() {
				serve(n, c, bufio.NewReader(c))
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

// take reads a request with its body.
func take(r *bufio.Reader) (string, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(req.Body)
	return string(b), err
}

// dialled counts the connections of a client.
type dialled struct {
	*Client
	dials atomic.Int32
}

func client(t *testing.T) *dialled {
	d := new(dialled)
	var dialer net.Dialer
	d.Client = New(Options{IdleFor: time.Minute, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.dials.Add(1)
		return dialer.DialContext(ctx, network, addr)
	}})
	t.Cleanup(d.Close)
	return d
}

func post(to *url.URL, body string) Request {
	return Request{To: to, Method: "POST", Head: fmt.Appendf(nil, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", len(body)), Body: []byte(body)}
}

// got is an answer, or why there is none.
type got struct {
	status int
	length int64
	body   string
	cut    bool
}

func (d *dialled) ask(t *testing.T, r Request) got {
	t.Helper()
	a, err := d.Send(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := io.ReadAll(a)
	return got{a.Status, a.Length, string(b), err != nil}
}

func TestAnswersAndWhetherTheirConnectionIsReused(t *testing.T) {
	tests := []struct {
		name, method, answer string
		want                 got
		reused               bool
	}{
		{"length", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", got{200, 2, "hi", false}, true},
		{"chunks", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", got{200, -1, "hi", false}, true},
		{"trailer", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\nhi\r\n0\r\nX: y\r\n\r\n", got{200, -1, "hi", false}, true},
		{"empty", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", got{200, 0, "", false}, true},
		{"no content", "DELETE", "HTTP/1.1 204 No Content\r\n\r\n", got{204, 0, "", false}, true},
		{"not modified", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", got{304, 0, "", false}, true},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", got{200, 2, "", false}, true},
		{"interim", "POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", got{200, 2, "hi", false}, true},
		{"announced close", "POST", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", got{200, 2, "hi", false}, false},
		{"until close", "POST", "HTTP/1.1 200 OK\r\n\r\nhi", got{200, -1, "hi", false}, false},
		{"HTTP/1.0", "POST", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", got{200, 2, "hi", false}, false},
		{"cut", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", got{200, 3, "hi", true}, false},
		{"cut chunk", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhi", got{200, -1, "hi", true}, false},
		{"no last chunk", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", got{200, -1, "hi", true}, false},
		{"more than its length", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", got{200, 2, "hi", false}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ends := !strings.Contains(tt.answer, "more") && !tt.reused
			c := client(t)
			to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
				for {
					if _, err := take(r); err != nil {
						return
					}
					io.WriteString(c, tt.answer)
					if ends {
						c.(*net.TCPConn).CloseWrite()
						r.ReadByte()
						return
					}
				}
			})
			for range 3 {
				r := post(to, "")
				r.Method, r.Head = tt.method, bytes.Replace(r.Head, []byte("POST"), []byte(tt.method), 1)
				if d := cmp.Diff(tt.want, c.ask(t, r), cmp.AllowUnexported(got{})); d != "" {
					t.Error(d)
				}
			}
			want := int32(3)
			if tt.reused {
				want = 1
			}
			if n := c.dials.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
		})
	}
}

func TestTheTrailerIsReadWithTheBody(t *testing.T) {
	for trailer, want := range map[string][]Field{
		"x-a: 1\r\nX-B:  2\r\n": {{"X-A", "1"}, {"X-B", "2"}},
		"":                      nil,
		"no field\r\n":          nil,
	} {
		c := client(t)
		to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if _, err := take(r); err == nil {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"+trailer+"\r\n")
				r.ReadByte()
			}
		})
		a, err := c.Send(t.Context(), post(to, ""))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(a); err != nil || string(b) != "hi" {
			t.Errorf("%q: %q, %v", trailer, b, err)
		}
		if d := cmp.Diff(want, a.Trailer); d != "" {
			t.Errorf("%q: %s", trailer, d)
		}
		a.Close()
	}
}

func TestWhatIsNoAnswer(t *testing.T) {
	tests := map[string]string{
		"nothing":           "",
		"no HTTP":           "hello\r\n\r\n",
		"no status":         "HTTP/1.1 OK\r\n\r\n",
		"half a head":       "HTTP/1.1 200 OK\r\nContent-Le",
		"two lengths":       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
		"unknown encoding":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: zip\r\n\r\nhi",
		"another protocol":  "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		"interim for ever":  strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100),
		"head without end":  "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 2000),
		"header of nothing": "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			c := client(t)
			to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
				take(r)
				io.WriteString(c, answer)
				c.(*net.TCPConn).CloseWrite()
				r.ReadByte()
			})
			if a, err := c.Send(t.Context(), post(to, "")); err == nil {
				a.Close()
				t.Errorf("taken for an answer: %+v", a)
			}
			if n := c.dials.Load(); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
}

// Small bodies go out behind their head, large ones beside it.
func TestBodiesArrive(t *testing.T) {
	c := client(t)
	to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			body, err := take(r)
			if err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})
	for _, room := range []int{0, 1 << 10} {
		for _, size := range []int{0, 1, 1 << 10, 1<<10 + 1, 8 << 20} {
			r := post(to, strings.Repeat("0123456789abcdef", size/16+1)[:size])
			r.Head = append(make([]byte, 0, len(r.Head)+room), r.Head...)
			if g := c.ask(t, r); g.body != string(r.Body) {
				t.Errorf("%d bytes with room for %d: %d came", size, room, len(g.body))
			}
		}
	}
}

// A request that meets a connection which the engine had closed is sent again,
// once, over a new one.
func TestClosedConnectionsCostNoRequest(t *testing.T) {
	ways := map[string]func(c net.Conn, r *bufio.Reader){
		"at once":                   func(c net.Conn, r *bufio.Reader) {},
		"when the next one begins":  func(c net.Conn, r *bufio.Reader) { r.Peek(1) },
		"when the next one is read": func(c net.Conn, r *bufio.Reader) { take(r) },
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			c := client(t)
			to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if _, err := take(r); err == nil {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
					end(c, r)
				}
			})
			for range 10 {
				c.ask(t, post(to, strings.Repeat("x", 100<<10)))
			}
			if n := c.dials.Load(); n != 10 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// What breaks a new connection, or an answer that has begun, is the engine's
// answer and not repeated.
func TestOtherFailuresAreNotRepeated(t *testing.T) {
	var requests atomic.Int32
	for _, begin := range []string{"", "HTTP/1.1 200 OK\r\n"} {
		c := client(t)
		to := engine(t, func(n int, c net.Conn, r *bufio.Reader) {
			for i := 0; ; i++ {
				if _, err := take(r); err != nil {
					return
				}
				requests.Add(1)
				if begin == "" || i == 1 {
					io.WriteString(c, begin)
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		})
		want := int32(1)
		if begin != "" {
			c.ask(t, post(to, "")) // so that the next one is on a kept connection
			want = 2
		}
		if _, err := c.Send(t.Context(), post(to, "")); !errors.Is(err, errEnded) {
			t.Errorf("after %q: %v", begin, err)
		}
		if n := requests.Swap(0); n != want {
			t.Errorf("after %q: %d requests, want %d", begin, n, want)
		}
	}
}

// Bytes that come unasked must not be taken for the answer to the next request.
func TestUnaskedBytesAreNoAnswer(t *testing.T) {
	unasked := make(chan bool)
	c := client(t)
	to := engine(t, func(n int, c net.Conn, r *bufio.Reader) {
		for {
			body, err := take(r)
			if err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			if n == 0 {
				<-unasked
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nanother")
				unasked <- true
			}
		}
	})
	c.ask(t, post(to, "first"))
	unasked <- true
	<-unasked
	if g := c.ask(t, post(to, "second")); g.body != "second" {
		t.Errorf("got %q", g.body)
	}
}

// An engine may refuse a body before it has read it.
func TestAnEarlyAnswerIsHeard(t *testing.T) {
	c := client(t)
	to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, r)
	})
	for range 2 {
		if g := c.ask(t, post(to, strings.Repeat("x", 16<<20))); g.status != 413 || g.body != "no" {
			t.Errorf("got %+v", g)
		}
	}
}

func TestTheEndOfTheContextClosesTheConnection(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
	for _, begin := range []string{"", head, head + "hi"} {
		t.Run(fmt.Sprint(len(begin)), func(t *testing.T) {
			c := client(t)
			ctx, cancel := context.WithCancel(t.Context())
			told := make(chan error)
			to := engine(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				take(r)
				io.WriteString(conn, begin)
				if begin == "" {
					cancel()
				}
				_, err := r.ReadByte()
				told <- err
			})
			a, err := c.Send(ctx, post(to, "x"))
			if begin != "" {
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				if n := len(begin) - len(head); n > 0 {
					io.ReadFull(a, make([]byte, n))
				}
				cancel()
				_, err = a.Read(make([]byte, 1))
			}
			if err == nil || err == io.EOF {
				t.Errorf("the read ended with %v", err)
			}
			<-told
		})
	}
}

func TestAnAnswerThatIsLeftIsClosed(t *testing.T) {
	told := make(chan error)
	c := client(t)
	to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		take(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi")
		_, err := r.ReadByte()
		told <- err
	})
	a, err := c.Send(t.Context(), post(to, ""))
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	<-told
	a.Close()
}

func TestTimeLimits(t *testing.T) {
	c := client(t)
	to := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if body, err := take(r); err == nil && body == "begin" {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi")
		}
		r.ReadByte()
	})
	past := time.Now().Add(-time.Second)
	r := post(to, "")
	r.Until = past
	if _, err := c.Send(t.Context(), r); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no head: %v", err)
	}
	a, err := c.Send(t.Context(), post(to, "begin"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	io.ReadFull(a, make([]byte, 2))
	a.SetReadDeadline(past)
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no more of the body: %v", err)
	}
}

func TestIdleConnectionsAreClosedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		var open atomic.Int32
		c := New(Options{IdleFor: 4 * time.Second, Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			dials++
			open.Add(1)
			go func() {
				for r := bufio.NewReader(far); ; {
					if _, err := take(r); err != nil {
						open.Add(-1)
						return
					}
					io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
				}
			}()
			return near, nil
		}})
		defer c.Close()
		to := &url.URL{Scheme: "http", Host: "engine"}
		ask := func() *Answer {
			a, err := c.Send(t.Context(), post(to, ""))
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		end := func(a *Answer) {
			if b, err := io.ReadAll(a); string(b) != "hi" || err != nil {
				t.Errorf("%q %v", b, err)
			}
		}
		check := func(wantDials int, wantOpen int32) {
			t.Helper()
			synctest.Wait()
			if dials != wantDials || open.Load() != wantOpen {
				t.Errorf("%d dialled, %d open; want %d, %d", dials, open.Load(), wantDials, wantOpen)
			}
		}
		first, second := ask(), ask()
		end(first)
		time.Sleep(time.Second) // the bubble's time
		end(second)
		check(2, 2)
		time.Sleep(3 * time.Second)
		check(2, 1) // the first is 4 s old
		time.Sleep(999 * time.Millisecond)
		check(2, 1)
		end(ask())
		check(2, 1)
		time.Sleep(4 * time.Second)
		check(2, 0)
		third := ask()
		check(3, 1)
		c.Close()
		end(third)
		check(3, 0)
	})
}

func TestWantOfResourcesIsNoFaultOfTheEngine(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		c := New(Options{IdleFor: time.Second, Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", errno)}
		}})
		_, err := c.Send(t.Context(), post(&url.URL{Scheme: "http", Host: "h"}, ""))
		if op := (*net.OpError)(nil); !errors.Is(err, ErrLocal) || errors.As(err, &op) || !strings.Contains(err.Error(), errno.Error()) {
			t.Errorf("%v", err)
		}
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	to, _ := url.Parse(s.URL)
	c := client(t)
	if _, err := c.Send(t.Context(), post(to, "")); !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("a certificate of nobody: %v", err)
	}
	c.roots = s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for range 3 {
		if g := c.ask(t, post(to, "hello")); g.body != "hello" {
			t.Errorf("%+v", g)
		}
	}
	if n := c.dials.Load(); n != 2 {
		t.Errorf("%d connections, want the refused one and one more", n)
	}
}
