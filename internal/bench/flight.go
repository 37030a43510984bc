package bench

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"lmwarden/internal/enginesim"
	"lmwarden/internal/routing"
)

// flight is a request that the gateway has.
type flight struct {
	id       routing.RequestID
	request  Request
	result   Result
	sequence enginesim.Sequence
	replica  int // where it was submitted, or -1
	done     func(Result)
}

// Send implements System. The request reaches the gateway half a round trip
// later.
func (v *virtual) Send(r Request, done func(Result)) {
	v.order++
	f := &flight{
		id: routing.RequestID(v.order), request: r, replica: routing.None, done: done,
		result: Result{Sent: v.now, First: -1, Token: -1, Last: -1, Prompt: -1, Cached: -1, Output: -1, Replica: routing.None},
	}
	v.flights[f.id] = f
	v.After(v.box.RoundTrip/2, func() {
		if v.flights[f.id] == f { // not cut on its way
			v.arrive(f)
		}
	})
}

func (v *virtual) arrive(f *flight) {
	v.tokenize(f)
	v.apply(v.router.Arrive(v.wall(), routing.Request{
		ID: f.id, Key: routingKey(f.request.Session), Parent: routingKey(f.request.Parent),
		Pin: routing.None, Tokens: v.estimate(f),
	}))
}

// estimate is what the gateway takes for the length of a prompt.
func (v *virtual) estimate(f *flight) int64 {
	tokens := float64(len(f.sequence.Prompt))
	if off := v.box.EstimateError; off > 0 {
		const least = 0.1 // of the prompt, however far off
		rng := rand.New(rand.NewPCG(v.seed, contentID(idEstimate, uint64(f.id))))
		tokens *= max(1+off*rng.NormFloat64(), least)
	}
	return int64(tokens)
}

// tokenize makes the sequence of a turn, from that of the turn before where there
// is one.
func (v *virtual) tokenize(f *flight) {
	s, turn := &f.sequence, &f.request.Turn
	s.ID, s.Reason = uint64(f.id), enginesim.ReasonLength
	s.Output = turn.Answer.appendTokens(nil)
	same := 0
	if before := v.last[f.request.Session]; before != nil {
		delete(v.last, f.request.Session)
		s.Follow(before, turn.Known)
		same = min(turn.Known, len(before.Prompt))
		s.Prompt = before.Prompt[:same]
	} else if n := len(v.spare); n > 0 {
		s.Prompt, v.spare = v.spare[n-1][:0], v.spare[:n-1]
	}
	s.Prompt = appendPrompt(s.Prompt, turn.Messages, same)
}

// discard keeps what the session's next turn will need of an ended one.
func (v *virtual) discard(f *flight) {
	if f.result.End == Finished && f.request.Session != 0 && !f.request.Last {
		v.last[f.request.Session] = &f.sequence
		return
	}
	v.spare = append(v.spare, f.sequence.Prompt)
}

// routingKey is a conversation's key; 0 stays the key of none.
func routingKey(session uint64) (k routing.Key) {
	binary.BigEndian.PutUint64(k[:], session)
	return k
}

// apply carries out the router's orders. A request that is held needs nothing: a
// later order follows.
func (v *virtual) apply(actions []routing.Action) {
	for _, a := range actions {
		f := v.flights[a.ID]
		if f == nil {
			continue
		}
		switch a.Kind {
		case routing.Dispatch:
			v.dispatch(f, a.Decision)
		case routing.Refuse:
			v.fail(f, "refused: "+string(a.Why))
		}
	}
}

func (v *virtual) dispatch(f *flight, d routing.Decision) {
	f.result.Reason = string(d.Reason)
	if v.servers[d.Server] == nil {
		v.tellStates() // the connection was refused
		v.retry(f)
		return
	}
	rank := enginesim.AnyRank
	if d.Replica != routing.None {
		rank = v.replicas[d.Replica].rank
	}
	apiServer := contentID(v.seed, uint64(f.id)) % uint64(v.box.apiServers())
	rank, err := v.servers[d.Server].Submit(v.wall(), int(apiServer), rank, &f.sequence)
	if err != nil {
		v.fail(f, err.Error())
		return
	}
	f.replica = d.Server*v.perServer() + rank
	f.result.Replica = f.replica
	// What arrives at the same moment is in the same step.
	v.After(0, v.replicas[f.replica].begin)
}

// retry looks for another replica for a turn whose attempt failed.
func (v *virtual) retry(f *flight) { v.apply(v.router.Retry(v.wall(), f.id)) }

func (v *virtual) beginStep(r *virtualReplica) {
	if r.box == nil || r.stepping {
		return
	}
	if took, work := r.box.Begin(v.wall(), r.rank); work {
		if slow := v.conditions[r.server*v.perServer()+r.rank].slow; slow > 0 {
			took = time.Duration(float64(took) * slow)
		}
		r.stepping, r.since = true, v.now
		v.After(took, r.end)
	}
}

func (v *virtual) endStep(r *virtualReplica) {
	if r.box == nil {
		return
	}
	r.stepping = false
	v.busy += v.now - r.since
	for _, e := range r.box.End(v.wall(), r.rank) {
		f := v.flights[routing.RequestID(e.ID)]
		if e.First {
			f.result.First = v.now + v.box.RoundTrip/2
			f.result.Token = f.result.First
			f.result.Prompt, f.result.Cached = len(f.sequence.Prompt), e.Cached
			v.router.FirstByte(v.wall(), f.id)
		}
		f.result.Output = max(f.result.Output, 0) + e.Tokens
		if e.Done {
			v.finish(f)
		}
	}
	v.After(0, r.begin)
}

// finish ends a turn whose answer is complete.
func (v *virtual) finish(f *flight) {
	f.result.End = Finished
	v.discard(f)
	v.apply(v.router.Finish(v.wall(), f.id, routing.Outcome{
		OK: true, Known: true, CachedKnown: true,
		Prompt: int64(f.result.Prompt), Cached: int64(f.result.Cached), Completion: int64(f.result.Output),
	}))
	v.answer(f)
}

// fail ends a turn that was refused.
func (v *virtual) fail(f *flight, why string) {
	f.result.End, f.result.Error = Failed, why
	v.discard(f)
	v.apply(v.router.Finish(v.wall(), f.id, routing.Outcome{}))
	v.answer(f)
}

// answer brings the end of a turn to its client, half a round trip later.
func (v *virtual) answer(f *flight) {
	v.After(v.box.RoundTrip/2, func() {
		if v.flights[f.id] != f {
			return // cut on its way
		}
		delete(v.flights, f.id)
		f.result.Last = v.now
		f.done(f.result)
	})
}

// Cut implements System.
func (v *virtual) Cut() {
	open := v.open()
	clear(v.flights) // what the router orders for them now concerns nobody
	clear(v.last)    // no session goes on
	for _, f := range open {
		if f.replica != routing.None && v.replicas[f.replica].box != nil {
			v.replicas[f.replica].box.Abort(uint64(f.id))
		}
		v.router.Finish(v.wall(), f.id, routing.Outcome{})
		f.result.End, f.result.Error = Cut, ""
		f.done(f.result)
	}
	v.mendAll()
}

// open are the turns under way, in the order in which they were sent.
func (v *virtual) open() []*flight {
	return slices.SortedFunc(maps.Values(v.flights), func(a, b *flight) int { return cmp.Compare(a.id, b.id) })
}
