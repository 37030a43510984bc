package app

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/systemd"
)

// Listeners are those that the process was handed; nil stands for one to open at
// the configured address. Whoever handed one over keeps it open, so that what
// connects while no gateway accepts waits in it and is refused by nobody.
type Listeners struct {
	Clients, Admin net.Listener
}

// The names of the sockets that a service manager may hand over.
const (
	clientsSocket = "clients"
	adminSocket   = "admin"
)

// inherited returns the sockets that this process was handed.
func inherited() (Listeners, error) {
	all, err := systemd.Listeners()
	if err != nil {
		return Listeners{}, err
	}
	on := Listeners{Clients: all[clientsSocket], Admin: all[adminSocket]}
	delete(all, clientsSocket)
	delete(all, adminSocket)
	if len(all) > 0 {
		return Listeners{}, fmt.Errorf("inherited sockets: there is no use for %s; set FileDescriptorName=%s or %s in its socket unit",
			strings.Join(slices.Sorted(maps.Keys(all)), ", "), clientsSocket, adminSocket)
	}
	return on, nil
}

// over puts the addresses of sockets that were handed over in place of those of
// the flags, so that they are checked and shown like them.
func (on Listeners) over(o ServeOptions) ServeOptions {
	if on.Clients != nil {
		o.Listen = on.Clients.Addr().String()
	}
	if on.Admin != nil {
		o.AdminListen = on.Admin.Addr().String()
	}
	return o
}

// open opens what was not handed over.
func (on *Listeners) open(clients, admin string) (err error) {
	if on.Clients == nil {
		if on.Clients, err = net.Listen("tcp", clients); err != nil {
			return fmt.Errorf("client listener: %w; choose another address with --listen", err)
		}
	}
	if on.Admin == nil {
		if on.Admin, err = net.Listen("tcp", admin); err != nil {
			on.Clients.Close()
			return fmt.Errorf("admin listener: %w; choose another address with --admin-listen", err)
		}
	}
	return nil
}

// A gateway that has just started does not know its replicas: it would refuse
// requests that it could serve, or place conversations anew whose home has not
// answered yet. So clients wait in the listener until every engine was heard, for
// no longer than firstReports.
const firstReports = 2 * time.Second

// awaitEngines returns when every engine was heard, or it is time to serve with
// what is known, or ctx ends.
func awaitEngines(ctx context.Context, models *pool.Set) {
	ctx, cancel := context.WithTimeout(ctx, firstReports)
	defer cancel()
	until(ctx, func() bool { return heard(models) })
}

// heard says whether every engine told what it is, or why it cannot, and those
// that did are numbered.
func heard(models *pool.Set) bool {
	silent := func(s pool.ServerView) bool { return s.Error == "" && len(s.Info.Models) == 0 }
	known := func(s pool.ServerView) bool { return len(s.Info.Models) > 0 }
	if slices.ContainsFunc(models.Unassigned(), silent) {
		return false
	}
	for _, p := range models.Pools() {
		v := p.View()
		if slices.ContainsFunc(v.Servers, silent) || len(v.Replicas) == 0 && slices.ContainsFunc(v.Servers, known) {
			return false
		}
	}
	return true
}

// lastRequests is how long connections that are open when no further one is
// accepted have to bring a request, which is answered and is their last.
const lastRequests = time.Second

// finish ends what clients have open and accepts nothing more. When ctx ends, the
// answers that have not are cut.
//
// It does not leave this to Server.Shutdown, which drops requests that arrive
// while it waits, and closes connections in which one is on its way.
func (g *Gateway) finish(ctx context.Context) {
	g.refuse()
	g.connections.parting.Store(true)
	last, cancel := context.WithTimeout(ctx, lastRequests)
	until(last, func() bool { return g.connections.count(http.StateNew, http.StateIdle, http.StateActive) == 0 })
	cancel()
	g.proxy.Stopping()
	g.clients.SetKeepAlivesEnabled(false)
	until(ctx, func() bool { return g.connections.count(http.StateActive) == 0 })
	if n := g.connections.count(http.StateActive); n > 0 {
		g.log.Warn("stopped with open answers, which are cut", "answers", n, "after", g.cfg.StopTimeout.String())
	}
	g.clients.Close()
}

// connections are those of the clients.
type connections struct {
	// parting makes the next answer on each the last one.
	parting atomic.Bool

	mu    sync.Mutex
	state map[net.Conn]http.ConnState // guarded by mu; of those that are open
}

// note suits http.Server.ConnState.
func (c *connections) note(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s == http.StateClosed || s == http.StateHijacked {
		delete(c.state, conn)
	} else {
		c.state[conn] = s
	}
}

func (c *connections) count(states ...http.ConnState) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.state {
		if slices.Contains(states, s) {
			n++
		}
	}
	return n
}

// serve is h for these connections.
func (c *connections) serve(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.parting.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// until polls until it is so, or ctx ends.
func until(ctx context.Context, so func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
