package pool

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"lmwarden/internal/engine"
)

// What the data plane says of an attempt that failed in one of these ways, in
// Lease.Retry and Lease.Failed. Every other error is the server's fault too, but
// of no known kind.
var (
	// ErrBusy is an engine's 503: it has no room. That is not a fault, and never
	// takes an engine out.
	ErrBusy = errors.New("the engine answered 503")
	// ErrAborted is an answer that the engine cut short and marked as ended. An
	// engine does so to all its answers when it dies or stops.
	ErrAborted = errors.New("the engine cut the answer short")
	// ErrLost is the cause with which Lease.Context ends when the pool gives an
	// attempt up. It is no news of the server.
	ErrLost = errors.New("the engine fell silent and takes no connection any more")
)

var errProbe = errors.New("its probe failed")

const (
	// suspicion is how long a server that aborts its answers is given nothing.
	// When one rank of a vLLM dies, those of the others abort their answers within
	// half a second; for 5.5 s the dead rank then takes requests and is silent,
	// the others answer or hang, and all probes succeed; at 6.1 s connections are
	// refused (measured on 0.32 and 0.33). So what comes of the server in that
	// time, answers included, says nothing for it.
	suspicion = 10 * time.Second

	// ejectAfter is how many attempts in a row must fail on a server whose probe
	// succeeds until it is put out; one success between them is enough to keep it.
	ejectAfter = 3
	// The first time it is put out for minEjection, then for twice as long each
	// time, until it answers again.
	minEjection, maxEjection = time.Second, 30 * time.Second

	// trialFor is how long a trial may take. What fails although its probe succeeds
	// fails at once; what takes longer is being served, or hangs, which shows in its
	// progress.
	trialFor = 5 * time.Second
)

// health is what attempts and probes say of a server. Whether a rank makes
// progress is another matter (progress).
type health struct {
	// gone is set from a refused connection or a bad probe until a probe succeeds
	// that began after that, at goneAt.
	gone   bool
	goneAt time.Time
	goneBy string
	// unreached is since when no connection to it can be made; zero while one can.
	// A vLLM that stops may leave streams without an error or an end then.
	unreached time.Time
	// out is set while it is given nothing though it can be reached, until a
	// probe succeeds that began at outUntil or later.
	out      bool
	outUntil time.Time
	outBy    string
	// returned is when the probe began that last let it back in.
	returned time.Time

	failures  int // attempts that failed in a row
	ejections int // times that it was put out in a row
	// probation follows an ejection: one request is let through, the trial, and
	// decides.
	probation bool
	trial     *Lease
	trialAt   time.Time
}

// available says whether the server is given requests as any other.
func (h *health) available() bool { return !h.gone && !h.out && h.trial == nil }

// trouble says why it is not available; empty when it is.
func (h *health) trouble() string {
	switch {
	case h.gone:
		return h.goneBy
	case !h.available():
		return h.outBy
	}
	return ""
}

// lost marks the server as gone.
func (h *health) lost(at time.Time, by error) {
	h.gone, h.goneAt, h.goneBy = true, at, errText(by)
	switch {
	case !dialFailed(by):
		h.unreached = time.Time{}
	case h.unreached.IsZero():
		h.unreached = at
	}
}

// unreachedFor is how long no connection to it could be made; 0 while one can.
func (h *health) unreachedFor(now time.Time) time.Duration {
	if h.unreached.IsZero() {
		return 0
	}
	return now.Sub(h.unreached)
}

// keepOut gives the server nothing until a probe succeeds that begins at until or
// later.
func (h *health) keepOut(until time.Time, by string) {
	h.out, h.outBy, h.trial = true, by, nil
	if until.After(h.outUntil) {
		h.outUntil = until
	}
}

// probed takes what a probe that began at a time found.
func (h *health) probed(at time.Time, found engine.Health, err error) {
	switch {
	case found == engine.Down:
		// Attempts and probes agree, so nothing is left to find out by attempts.
		*h = health{unreached: h.unreached}
		h.lost(at, cmp.Or(err, errProbe))
	case found == engine.Up:
		away := h.gone || h.out
		if !at.Before(h.goneAt) {
			h.gone, h.unreached = false, time.Time{}
		}
		if !at.Before(h.outUntil) {
			h.out = false
		}
		if away && !h.gone && !h.out {
			h.returned = at
		}
	}
}

// failed takes the failure of an attempt.
func (h *health) failed(now time.Time, l *Lease, err error) {
	if errors.Is(err, ErrBusy) || errors.Is(err, ErrLost) {
		return
	}
	if engine.Unreachable(err) && l.sentAt.Before(h.returned) {
		// What was open when it was down may break long after it is back, as when
		// its machine was started anew.
		return
	}
	// Attempts that were under way when it was put out bring no news.
	onTrial, old := h.trial == l, h.out || h.probation
	switch {
	case errors.Is(err, ErrAborted):
		h.keepOut(now.Add(suspicion), "it aborted its answers, as an engine does that dies")
	case !engine.Unreachable(err):
	case dialFailed(err):
		h.lost(now, err)
	case !h.out:
		// It hung up, which may be the first sign of its end, or a slip. The next
		// probe tells.
		h.keepOut(now, err.Error())
	}
	h.failures++
	if onTrial || !old && h.failures >= ejectAfter {
		rest := min(minEjection<<min(h.ejections, 16), maxEjection)
		h.ejections++
		h.probation = true
		h.keepOut(now.Add(rest), fmt.Sprintf("its probe succeeds, but attempts fail, the last one so: %v", err))
	}
}

// try lets a request through when one is to decide.
func (h *health) try(now time.Time, l *Lease) {
	if h.probation && h.available() {
		h.trial, h.trialAt = l, now
	}
}

// tried ends a trial that has not failed in time.
func (h *health) tried(now time.Time) {
	if h.trial != nil && now.Sub(h.trialAt) >= trialFor {
		h.answered()
	}
}

// answered takes the first byte of an answer, which closes the case. Only what
// aborts or hangs up has to wait for a probe nevertheless.
func (h *health) answered() {
	h.failures, h.ejections, h.probation, h.trial = 0, 0, false, nil
}

func dialFailed(err error) bool {
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}
