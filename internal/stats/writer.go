package stats

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// batch is what waits to be written.
type batch struct {
	records []Record
	samples []Sample
}

func (b *batch) empty() bool { return len(b.records)+len(b.samples) == 0 }

// queue is what was added and is not in a batch yet. It is no channel, since that
// would wake the writer for single records.
type queue struct {
	full chan struct{} // told when there are enough records for a batch

	mu      sync.Mutex
	records []Record // guarded by mu
}

// add reports whether there was room.
func (q *queue) add(r *Record) bool {
	q.mu.Lock()
	n := len(q.records)
	if n < queued {
		q.records = append(q.records, *r)
	}
	q.mu.Unlock()
	if n+1 == maxBatch {
		select {
		case q.full <- struct{}{}:
		default:
		}
	}
	return n < queued
}

// moveTo moves the oldest records to a batch, as many as it has room for, and
// returns how many are left.
func (q *queue) moveTo(b *batch) (left int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.records), maxBatch-len(b.records))
	b.records = append(b.records, q.records[:n]...)
	q.records = q.records[:copy(q.records, q.records[n:])]
	return len(q.records)
}

const (
	// maxBatch is how many records wait in the writer. While they cannot be
	// written, the queue behind it fills next, and then records are dropped.
	maxBatch = 4096
	// retainEvery is how often old data is looked for when there was none.
	retainEvery = time.Minute
)

// Run opens the file and writes what is added, until ctx ends and what was added
// before is written. A file that cannot be opened is tried again, one that cannot
// be read is moved aside; State tells of both. Run is called once.
func (s *Store) Run(ctx context.Context) {
	defer close(s.stopped)
	writing := context.WithoutCancel(ctx) // what is begun is written whole
	defer s.close()
	s.reopen(writing)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var b batch
	var retained time.Time // when nothing old was left
	for {
		select {
		case <-s.queue.full:
			s.drain(writing, &b)
		case all := <-s.samples:
			b.take(all)
		case now := <-tick.C:
			s.drain(writing, &b)
			if now.Sub(retained) >= retainEvery && !s.retain(writing) {
				retained = now
			}
		case done := <-s.flushes:
			s.drain(writing, &b)
			close(done)
		case <-ctx.Done():
			s.drain(writing, &b)
			return
		}
	}
}

// take adds samples; while nothing can be written the oldest make room.
func (b *batch) take(all []Sample) {
	const most = 4096
	b.samples = append(b.samples, all...)
	if n := len(b.samples); n > most {
		b.samples = append([]Sample(nil), b.samples[n-most:]...)
	}
}

// drain writes everything that was added before, as far as it can be written.
func (s *Store) drain(ctx context.Context, b *batch) {
	for {
		select {
		case all := <-s.samples:
			b.take(all)
			continue
		default:
		}
		left := s.queue.moveTo(b)
		if s.flush(ctx, b); left == 0 || len(b.records) > 0 {
			return
		}
	}
}

// flush writes the batch. What cannot be written stays in it for the next time.
func (s *Store) flush(ctx context.Context, b *batch) {
	if s.writable() == nil {
		s.reopen(ctx)
	}
	db := s.writable()
	if db == nil {
		return
	}
	if b.empty() {
		s.wrote()
		return
	}
	if err := db.append(ctx, b); err != nil {
		s.fail(ctx, err)
		return
	}
	s.wrote()
	b.records, b.samples = b.records[:0], b.samples[:0]
}

func (s *Store) writable() *database {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.db
}

// fail notes an error of the open database and opens it anew where that may help.
func (s *Store) fail(ctx context.Context, err error) {
	s.report(err)
	illness := diagnose(err)
	if illness == waiting {
		return
	}
	s.mu.Lock()
	db := s.db
	s.db = nil
	s.mu.Unlock()
	db.close()
	if illness == damaged {
		s.replace(ctx, err)
	} else {
		s.reopen(ctx)
	}
}

// reopen opens the database. What cannot be read is moved aside.
func (s *Store) reopen(ctx context.Context) {
	db, err := openDatabase(ctx, s.o.Path)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.db = db; !s.failing {
			s.problem = ""
		}
		return
	}
	s.report(err)
	if diagnose(err) == damaged {
		s.replace(ctx, err)
	}
}

// replace moves the file aside and begins a new one.
func (s *Store) replace(ctx context.Context, why error) {
	aside := fmt.Sprintf("%s.unreadable-%d", s.o.Path, s.o.Now().UnixMilli())
	if s.o.Path != MemoryOnly {
		if err := moveAside(s.o.Path, aside); err != nil {
			s.report(fmt.Errorf("move the unreadable history aside: %w", err))
			return
		}
	}
	db, err := openDatabase(ctx, s.o.Path)
	if err != nil {
		s.report(err)
		return
	}
	s.o.Logger.Error("the history could not be read: moved aside, starting with an empty one", "error", why.Error(), "moved_to", aside)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db, s.problem, s.failing = db, "", false
	s.aside = fmt.Sprintf("The history could not be read (%v); it was moved to %s and a new one begun.", why, aside)
}

// report says once that records cannot be written.
func (s *Store) report(err error) {
	problem := fmt.Sprintf("Requests are not written to the history %s: %v.", s.o.Path, err)
	if full(err) {
		problem = fmt.Sprintf("Requests are not written to the history %s: the disk is full. Make room, or give another folder with --data.", s.o.Path)
	}
	s.mu.Lock()
	was := s.failing
	s.problem, s.failing = problem, true
	s.mu.Unlock()
	if !was {
		s.o.Logger.Error("the history cannot be written: it is tried again, requests go on", "path", s.o.Path, "error", err.Error())
	}
}

// wrote notes that records are written, and says so once if they were not.
func (s *Store) wrote() {
	s.mu.Lock()
	was := s.failing
	s.problem, s.failing = "", false
	s.mu.Unlock()
	if was {
		s.o.Logger.Info("the history is written again", "path", s.o.Path)
	}
}

// close closes the database at the end of Run.
func (s *Store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil {
		s.db.close()
	}
	s.db, s.problem = nil, "The history is closed."
}
