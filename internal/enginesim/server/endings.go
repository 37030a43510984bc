package server

import (
	"slices"
	"time"
)

// What happens to processes and their ranks. The times are those of the recordings
// engine-death.txt, engine-stop.txt and sigterm.txt, taken in the middle where they vary.
const (
	// abortAfter is when the surviving ranks of a server notice and abort what they have.
	abortAfter = 250 * time.Millisecond
	// noticeAfter is when the API server notices that an engine is dead.
	noticeAfter = 5500 * time.Millisecond
	// refuseAfter is when a server with a dead engine closes its port.
	refuseAfter = 5800 * time.Millisecond

	// The same for a server that is told to stop and does not wait.
	stopAbortAfter  = 80 * time.Millisecond
	stopRefuseAfter = 1200 * time.Millisecond
	// killedRefuseAfter is from the end of the shutdown timeout to the closed port.
	killedRefuseAfter = 900 * time.Millisecond
)

// step is something that happens some time after the beginning of a failure.
type step struct {
	at time.Duration
	do func()
}

func dieSteps(p *process, f failure) []step {
	e := p.engine
	if f.rank >= e.ranks() {
		return nil // the process came back with fewer
	}
	others := slices.DeleteFunc(e.everyRank(), func(rank int) bool { return rank == f.rank })
	steps := []step{
		{0, func() { e.hold(f.rank) }},
		{abortAfter, func() { each(others, e.abort) }},
		{max(abortAfter, min(f.answers, noticeAfter)), func() { each(others, e.hold) }},
		{noticeAfter, p.die},
	}
	if !f.shell {
		steps = append(steps, step{refuseAfter, p.leave})
	}
	return steps
}

func stopSteps(p *process, f failure) []step {
	e := p.engine
	if f.timeout == 0 {
		return []step{
			{stopAbortAfter, func() {
				each(e.everyRank(), e.abort)
				p.die()
			}},
			{stopRefuseAfter, p.leave},
		}
	}
	return []step{
		{0, func() { p.become(draining) }},
		{f.timeout, func() {
			p.become(dead)
			each(e.everyRank(), e.hold)
		}},
		{f.timeout + killedRefuseAfter, p.leave},
	}
}

func restartSteps(p *process, _ failure) []step { return []step{{0, p.kill}} }

func freezeSteps(p *process, f failure) []step {
	e := p.engine
	if f.rank >= e.ranks() {
		return nil // the process came back with fewer
	}
	return []step{{0, func() { e.hold(f.rank) }}, {f.lasts, func() { e.release(f.rank) }}}
}

func slowSteps(p *process, f failure) []step {
	e := p.engine
	if f.rank >= e.ranks() {
		return nil // the process came back with fewer
	}
	var end func()
	steps := []step{{0, func() { end = e.slow(f.rank, f.factor) }}}
	if f.lasts > 0 {
		steps = append(steps, step{f.lasts, func() { end() }})
	}
	return steps
}

func (e *engine) everyRank() []int {
	ranks := make([]int, e.ranks())
	for rank := range ranks {
		ranks[rank] = rank
	}
	return ranks
}

func each(ranks []int, do func(int)) {
	for _, rank := range ranks {
		do(rank)
	}
}
