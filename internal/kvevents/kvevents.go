// Package kvevents listens to the KV events of vLLM's ranks (--kv-events-config):
// which blocks each prefix cache took in and dropped. From them it knows how much a
// replica really has cached, for people to compare with what the gateway estimates.
// Nothing waits for it and nothing is decided by it.
//
// What an engine tells is only as whole as what was heard: there is no snapshot, so
// that a listener that comes late knows of older blocks only what the engine's
// buffer of batches can replay. View.Complete says whether anything may be missing.
package kvevents

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"
)

// Source is where a rank publishes.
type Source struct {
	// Events is the address of the publisher, HOST:PORT.
	Events string
	// Replay is the address that sends former batches again; empty for none.
	Replay string
}

// View is what is known of one replica's cache.
type View struct {
	Connected bool
	// Problem is why it is not connected, or what last went wrong; empty when nothing
	// did.
	Problem string
	// Complete says that every batch of the engine's life was heard, or every one
	// since all was cleared.
	Complete bool
	// CachedTokens is the content of the cache, Blocks in how many blocks: what
	// running requests use as well as what idle conversations left. Content in several
	// copies counts once, and what is in memory behind the cache not at all. -1 until
	// the first batch of a connection.
	CachedTokens int64
	Blocks       int
	// StoredPerSecond and RemovedPerSecond are tokens, over the last ten seconds.
	StoredPerSecond, RemovedPerSecond float64
	// Sequence is the number of the last batch, -1 before the first.
	Sequence int64
	// Gaps counts interruptions of the sequence, Lost the batches that no replay
	// brought or that could not be read, since the gateway listens to this replica.
	Gaps, Lost int64
	// Age is the time since the last batch, negative before the first. An idle engine
	// sends none.
	Age time.Duration
}

// Options are what New needs.
type Options struct {
	Log *slog.Logger
	// Dial opens a connection; nil is the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Listeners listen to any number of sources. Safe for concurrent use.
type Listeners struct {
	o  Options
	mu sync.Mutex
	on map[Source]*subscriber // guarded by mu
}

// New listens to nothing yet.
func New(o Options) (*Listeners, error) {
	if o.Log == nil {
		return nil, errors.New("kvevents: Log is required")
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	o.Log = o.Log.With("component", "kvevents")
	return &Listeners{o: o, on: map[Source]*subscriber{}}, nil
}

// Listen makes these the sources, and waits until those that are none any more have
// ended. What is known of the others stays.
func (l *Listeners) Listen(sources []Source) {
	l.mu.Lock()
	gone := maps.Clone(l.on)
	for _, from := range sources {
		delete(gone, from)
		if l.on[from] == nil {
			l.on[from] = l.start(from)
		}
	}
	for from := range gone {
		delete(l.on, from)
	}
	l.mu.Unlock()
	for _, s := range gone {
		s.cancel()
	}
	for _, s := range gone {
		<-s.ended
	}
}

func (l *Listeners) start(from Source) *subscriber {
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscriber{
		from: from, dial: l.o.Dial, log: l.o.Log, cache: cache{most: maxBlocks},
		cancel: cancel, ended: make(chan struct{}),
	}
	go s.run(ctx)
	return s
}

// View is what is known of a source; false when nobody listens to it.
func (l *Listeners) View(from Source) (View, bool) {
	l.mu.Lock()
	s := l.on[from]
	l.mu.Unlock()
	if s == nil {
		return View{}, false
	}
	return s.view(), true
}

// Stop listens to nothing any more.
func (l *Listeners) Stop() { l.Listen(nil) }
