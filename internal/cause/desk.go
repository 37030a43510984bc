package cause

import (
	"context"
	"sync"
	"time"

	"lmwarden/internal/llmapi"
)

const (
	// maxJobs is how much may wait at a Desk, maxBodies how many bytes of bodies.
	maxJobs   = 8192
	maxBodies = 32 << 20
	// manyBodies is with how many bytes of bodies it begins at once.
	manyBodies = 1 << 20
	// workEvery is how long it waits at most: to wake a goroutine for each request
	// would cost the request more than all else here.
	workEvery = 50 * time.Millisecond
)

// Desk does the work of a Book in the order in which it is asked for, in a goroutine
// of its own, so that no request waits for it. It is safe for concurrent use.
type Desk struct {
	book *Book
	many chan struct{} // told that many bodies wait; has room for one word

	mu     sync.Mutex
	jobs   []job // guarded by mu
	bodies int   // guarded by mu; bytes that wait to be read
}

// job is a body to be read or, with then set, a turn to be judged.
type job struct {
	key Key

	facts   *llmapi.Facts
	body    []byte
	done    func(body []byte)
	reading *Reading

	turn  Turn
	cache Cache
	then  func(Verdict)
}

// NewDesk returns a desk with an empty book. Run does the work.
func NewDesk() *Desk { return &Desk{book: NewBook(), many: make(chan struct{}, 1)} }

// Run works until ctx ends and what was asked for before is done. It is called once.
func (d *Desk) Run(ctx context.Context) {
	tick := time.NewTicker(workEvery)
	defer tick.Stop()
	var jobs []job
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-d.many:
		case <-ctx.Done():
			ended = true
		}
		d.mu.Lock()
		jobs, d.jobs = d.jobs, jobs[:0]
		d.mu.Unlock()
		for i := range jobs {
			d.do(&jobs[i])
		}
		clear(jobs)
	}
}

func (d *Desk) do(j *job) {
	if j.then != nil {
		j.then(d.book.Judge(j.key, j.turn, j.cache))
		return
	}
	d.book.read(j.reading, j.key, j.facts, j.body)
	j.done(j.body)
	d.mu.Lock()
	d.bodies -= len(j.body)
	d.mu.Unlock()
}

// Read takes over the body of a turn and hands it to done when it has been read.
// What it returns is filled in until the Judge that is asked for later; it is nil
// when too much waits already.
func (d *Desk) Read(k Key, f *llmapi.Facts, body []byte, done func(body []byte)) *Reading {
	r := &Reading{}
	if !d.ask(job{key: k, facts: f, body: body, done: done, reading: r}) {
		done(body)
		return nil
	}
	return r
}

// Judge has a turn judged and calls then with the cause, from another goroutine.
// When too much waits already, it calls it at once, with no cause.
func (d *Desk) Judge(k Key, now Turn, c Cache, then func(Verdict)) {
	if !d.ask(job{key: k, turn: now, cache: c, then: then}) {
		then(Verdict{})
	}
}

// ask reports whether there was room.
func (d *Desk) ask(j job) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.jobs) == maxJobs || d.bodies+len(j.body) > maxBodies {
		return false
	}
	d.bodies += len(j.body)
	d.jobs = append(d.jobs, j)
	if d.bodies > manyBodies {
		select {
		case d.many <- struct{}{}:
		default:
		}
	}
	return true
}
