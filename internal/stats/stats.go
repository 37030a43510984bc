// Package stats is the history of a gateway: what became of each finished
// request, and how its replicas were, for charts over an hour or a month. Add
// takes records from the data path and never waits; Run, one goroutine, writes
// them in batches to SQLite, and everything that a chart shows is read from sums that are
// kept per 10 seconds, minute, 10 minutes, hour and day, never from the records themselves.
//
// The package decides nothing about requests and knows no HTTP route. What it
// keeps holds no prompt text and no credential.
//
// Where to look: record.go is what goes in, query.go what may be asked, charts.go
// and turns.go are the answers, writer.go is the goroutine, rollup.go the sums,
// database.go the file with its migrations, retain.go what is deleted when,
// export.go the records for other programs.
package stats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryOnly is the Options.Path that keeps nothing on disk.
const MemoryOnly = ":memory:"

// Options are what New needs. Path and Logger are required.
type Options struct {
	// Path is the database file, or MemoryOnly.
	Path string
	// Keep is how long single requests are kept, KeepTotals how long their sums by
	// the hour and day. Default 30 days and 400 days. Sums per 10 seconds are kept
	// for 2 days, those per minute for 8 and those per 10 minutes for 62.
	Keep, KeepTotals time.Duration
	// MaxBytes bounds the database; the oldest requests leave first. Default 1 GiB,
	// in memory 64 MiB at most.
	MaxBytes int64
	Logger   *slog.Logger
	// Now is the clock of the retention and of "the running step"; nil means
	// time.Now.
	Now func() time.Time
}

const (
	// queued is how many records may wait for the writer: about a second of a
	// gateway at its limit.
	queued = 8192
	// flushEvery is how old a record is at most when it is written, and what a
	// kill may cost; a chart is at most that far behind.
	flushEvery = 500 * time.Millisecond
)

// Store is an open history. It is safe for concurrent use.
type Store struct {
	o       Options
	queue   queue
	samples chan []Sample
	flushes chan chan struct{}
	stopped chan struct{} // closed when Run has ended
	dropped atomic.Int64

	mu sync.Mutex
	// The rest is guarded by mu.
	db      *database // nil while there is none
	failing bool      // records could not be written at the last try
	problem string    // why records are not written now, empty when they are
	aside   string    // what was moved aside since the start
}

// ErrUnavailable says that there is no database to ask at the moment; State says
// why.
var ErrUnavailable = errors.New("the history cannot be read now")

// New prepares a history; Run opens its file. It fails on options that make no
// sense.
func New(o Options) (*Store, error) {
	if o.Path == "" || o.Logger == nil {
		return nil, errors.New("stats: Path and Logger are required")
	}
	if o.Keep < 0 || o.KeepTotals < 0 || o.MaxBytes < 0 {
		return nil, fmt.Errorf("stats: retention %v, %v, %d bytes: must not be negative", o.Keep, o.KeepTotals, o.MaxBytes)
	}
	o.Keep = cmp.Or(o.Keep, 30*day)
	o.KeepTotals = cmp.Or(o.KeepTotals, 400*day)
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<30)
	if o.Path == MemoryOnly {
		o.MaxBytes = min(o.MaxBytes, 64<<20)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{
		o:       o,
		queue:   queue{full: make(chan struct{}, 1)},
		samples: make(chan []Sample, 16),
		flushes: make(chan chan struct{}),
		stopped: make(chan struct{}),
		problem: "The history is not open.",
	}, nil
}

// Add takes a finished request. It never waits: when the writer cannot keep up,
// or cannot write, the record is dropped and counted.
func (s *Store) Add(r Record) {
	if !s.queue.add(&r) {
		s.dropped.Add(1)
	}
}

// AddSamples takes the state of replicas at one moment. It never waits; what
// finds no room is lost, as a gap in a chart.
func (s *Store) AddSamples(all []Sample) {
	select {
	case s.samples <- all:
	default:
	}
}

// Dropped is how many records were lost since New because the writer did not
// keep up.
func (s *Store) Dropped() int64 { return s.dropped.Load() }

// Flush waits until all that was added before is written or cannot be. It fails
// when Run has ended, and waits for Run to begin.
func (s *Store) Flush(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case s.flushes <- done:
	case <-s.stopped:
		return ErrUnavailable
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// State is how the history fares, for a page.
type State struct {
	// OK is set while records are written.
	OK bool
	// Sentence says what is wrong now, or what was done to an unreadable file since
	// the start; empty when there is nothing to tell.
	Sentence string
	Dropped  int64
}

// State tells how the history fares.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{OK: s.problem == "", Sentence: s.problem, Dropped: s.Dropped()}
	if st.OK {
		st.Sentence = s.aside
	}
	if st.OK && st.Dropped > 0 {
		if st.Sentence != "" {
			st.Sentence += " "
		}
		st.Sentence += fmt.Sprintf("%d requests are missing from the history: it could not be written fast enough.", st.Dropped)
	}
	return st
}

// reading is the database for a query.
func (s *Store) reading() (*database, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, s.problem)
	}
	return s.db, nil
}
