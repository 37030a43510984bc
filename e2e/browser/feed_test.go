package browser

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// feed breaks the connection between the page and the gateway, and mends it.
func feed(t *testing.T, b *box, browser context.Context) {
	w := newWire(t, strings.TrimPrefix(b.Admin, "http://"))
	p := open(t, browser, "http://"+w.address, "/models/"+model)
	const clock = `document.querySelector("[aria-labelledby=decisions] tbody time").getAttribute("datetime")`
	p.until("the page to be live", `document.getElementById("live-text").textContent.startsWith("live")`)

	p.expectBreaks(true)
	w.cut()
	began := time.Now()
	p.until("the break to be shown", `!document.getElementById("feed").hidden && document.documentElement.hasAttribute("data-broken")`)
	if took := time.Since(began); took > 7*time.Second {
		t.Errorf("the break was shown after %v", took)
	}
	if says := eval[string](p, `document.getElementById("feed").innerText + document.getElementById("live-text").textContent`); !strings.Contains(says, "What you see is old") || !strings.Contains(says, "no connection") {
		t.Errorf("the page says %q", says)
	}
	old := eval[string](p, clock)
	w.mend()
	p.until("the page to recover", `document.getElementById("feed").hidden && !document.documentElement.hasAttribute("data-broken") && `+clock+` !== "`+old+`"`)
	p.expectBreaks(false)
}

// wire passes connections on to an address until it is cut.
type wire struct {
	t           *testing.T
	address, to string

	mu       sync.Mutex
	listener net.Listener
	ends     map[net.Conn]bool // nil while the wire is cut
	running  sync.WaitGroup
}

func newWire(t *testing.T, to string) *wire {
	w := &wire{t: t, address: "127.0.0.1:0", to: to}
	w.mend()
	t.Cleanup(func() {
		w.cut()
		w.running.Wait()
	})
	return w
}

func (w *wire) mend() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	listener, err := net.Listen("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.listener, w.address, w.ends = listener, listener.Addr().String(), map[net.Conn]bool{}
	w.running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			w.running.Go(func() { w.join(near) })
		}
	})
}

// join copies both ways until one end closes.
func (w *wire) join(near net.Conn) {
	far, err := net.Dial("tcp", w.to)
	if err != nil || !w.keep(near, far) {
		near.Close()
		return
	}
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			near.Close()
			far.Close()
		})
	}
	both.Wait()
}

// keep remembers the ends of a connection, unless the wire is cut.
func (w *wire) keep(ends ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range ends {
		if w.ends == nil {
			c.Close()
			continue
		}
		w.ends[c] = true
	}
	return w.ends != nil
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listener.Close()
	for c := range w.ends {
		c.Close()
	}
	w.ends = nil
}
