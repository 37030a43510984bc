package server

import (
	"context"
	"sync"
	"time"

	"lmwarden/internal/enginesim"
)

// maxLag bounds how far a rank's clock may fall behind and be caught up by steps
// without waiting: more means that this machine cannot keep the speed asked for.
const maxLag = 100 * time.Millisecond

// engine runs an enginesim.Box in real time: one goroutine per rank steps it, handlers
// add and abandon sequences. What can befall its ranks is in halt.go.
type engine struct {
	speed float64
	epoch time.Time       // when the box was made
	wakes []chan struct{} // by rank; each holds one signal: there may be work
	kv    []*publisher    // by rank; none when nobody listens

	mu      sync.Mutex
	box     *enginesim.Box       // guarded by mu
	live    map[uint64]*sequence // guarded by mu: by id
	lastID  uint64               // guarded by mu
	figures []*figures           // guarded by mu: by rank
	aborted []int64              // guarded by mu: by rank, sequences that abort ended
	halts   []halt               // guarded by mu: by rank
	slowed  []slowness           // guarded by mu: by rank
	gone    error                // guarded by mu: why no sequence is taken any more
}

// sequence is one live prompt of a job. Its fields below rank are guarded by engine.mu.
type sequence struct {
	id   uint64
	job  *job
	part int
	rank int

	params    requestParams
	prompt    int // tokens
	cached    int
	generated int

	arrived, admitted, first, last time.Time
}

// requestParams are the numbers of a request that only the metrics want to know.
type requestParams struct{ maxTokens, n int }

func newEngine(box *enginesim.Box, speed float64, modelLen int) *engine {
	e := &engine{
		speed: speed, epoch: time.Now(), box: box, live: map[uint64]*sequence{},
		aborted: make([]int64, box.Ranks()), halts: make([]halt, box.Ranks()), slowed: make([]slowness, box.Ranks()),
	}
	for range box.Ranks() {
		e.wakes = append(e.wakes, make(chan struct{}, 1))
		e.figures = append(e.figures, newFigures(modelLen))
	}
	return e
}

func (e *engine) ranks() int { return len(e.wakes) }

// now is the box's time, which runs speed times as fast as the clock.
func (e *engine) now() time.Time {
	return e.epoch.Add(time.Duration(float64(time.Since(e.epoch)) * e.speed))
}

// add gives a sequence to a rank, or to the balancer's choice with enginesim.AnyRank. What
// becomes of it is delivered to the job as its part.
func (e *engine) add(j *job, part, rank int, s *enginesim.Sequence, params requestParams) (*sequence, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone != nil {
		return nil, e.gone
	}
	e.lastID++
	s.ID = e.lastID
	rank, err := e.box.Submit(e.now(), 0, rank, s)
	if err != nil {
		return nil, err
	}
	q := &sequence{id: s.ID, job: j, part: part, rank: rank, params: params, prompt: len(s.Prompt), arrived: time.Now()}
	e.live[s.ID] = q
	select {
	case e.wakes[rank] <- struct{}{}:
	default:
	}
	return q, nil
}

// abandon takes a sequence out of the engine if it is still there. Like a client that
// leaves, it appears in no counter of finished requests.
func (e *engine) abandon(q *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[q.id] == q {
		delete(e.live, q.id)
		e.box.Abort(q.id)
	}
}

// run steps every rank until ctx ends. When it returns, the jobs of all live sequences
// have been told that the engine is gone, and no further one is taken.
func (e *engine) run(ctx context.Context) {
	var ranks sync.WaitGroup
	for rank := range e.wakes {
		ranks.Go(func() { e.runRank(ctx, rank) })
	}
	ranks.Wait()
	e.lose(errEngineGone)
}

// runRank lets one step after the other begin, its duration pass (divided by the speed),
// and end.
func (e *engine) runRank(ctx context.Context, rank int) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now() // when the step in progress ends
	for ctx.Err() == nil && e.lockRunning(ctx, rank) {
		began := time.Now()
		took, busy := e.box.Begin(e.now(), rank)
		took = e.slowed[rank].of(took)
		e.mu.Unlock()
		if !busy {
			select {
			case <-e.wakes[rank]:
			case <-ctx.Done():
			}
			due = time.Now()
			continue
		}
		if earliest := began.Add(-maxLag); due.Before(earliest) {
			due = earliest
		}
		due = due.Add(time.Duration(float64(took) / e.speed))
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if !e.lockRunning(ctx, rank) {
			return
		}
		e.endStep(rank, began)
		events := e.box.KVEvents(rank)
		e.mu.Unlock()
		if e.kv != nil {
			e.kv[rank].publish(events)
		}
	}
}

// endStep is called with mu held.
func (e *engine) endStep(rank int, began time.Time) {
	now := time.Now()
	for _, emit := range e.box.End(e.now(), rank) {
		q := e.live[emit.ID]
		e.figures[rank].emitted(q, emit, began, now)
		if emit.Done {
			delete(e.live, emit.ID)
		}
		if emit.Tokens == 0 {
			continue
		}
		// Delivering only appends to the job's list: nothing waits under the lock.
		q.job.deliver(event{
			part: q.part, tokens: emit.Tokens, first: emit.First, cached: emit.Cached, created: emit.Created,
			done: emit.Done, reason: emit.Reason,
		})
	}
	e.figures[rank].stepped(e.box.Stats(rank).LastStepTokens)
}

// resetCache empties the prefix cache of all ranks; false when one is in use.
func (e *engine) resetCache() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.box.Reset()
}

// cachedTokens is the content of each rank's prefix cache.
func (e *engine) cachedTokens() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]int, e.ranks())
	for rank := range all {
		all[rank] = e.box.CachedTokens(rank)
	}
	return all
}

// snapshot is what the ranks have counted, all of one moment. A halted rank still shows what it
// did when it was halted.
func (e *engine) snapshot() ([]enginesim.Stats, []figures) {
	e.mu.Lock()
	defer e.mu.Unlock()
	stats := make([]enginesim.Stats, e.ranks())
	counted := make([]figures, e.ranks())
	for rank := range stats {
		if h := &e.halts[rank]; h.held > 0 {
			stats[rank], counted[rank] = h.stats, h.figures
		} else {
			stats[rank], counted[rank] = e.figuresOf(rank)
		}
	}
	return stats, counted
}

// figuresOf is called with mu held.
func (e *engine) figuresOf(rank int) (enginesim.Stats, figures) {
	stats := e.box.Stats(rank)
	if n := e.aborted[rank]; n > 0 {
		stats.Finished[reasonAbort] = n
	}
	return stats, e.figures[rank].clone()
}
