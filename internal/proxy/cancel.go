package proxy

import (
	"context"
	"errors"
	"sync"

	"lmwarden/internal/session"
)

// errCancelled is why a request ended that an operator cancelled.
var errCancelled = errors.New("cancelled by an operator")

// enlisted are the open requests of conversations.
type enlisted struct {
	mu sync.Mutex
	// of is guarded by mu. A conversation rarely has more than one.
	of map[session.Key]map[*exchange]context.CancelCauseFunc
}

// Cancel ends the open requests of a conversation and says how many there were.
// Their engines stop at once; their clients see answers that broke off.
func (h *Handler) Cancel(k session.Key) int {
	h.enlisted.mu.Lock()
	var all []context.CancelCauseFunc
	for _, end := range h.enlisted.of[k] {
		all = append(all, end)
	}
	h.enlisted.mu.Unlock()
	for _, end := range all {
		end(errCancelled)
	}
	return len(all)
}

// enlist makes a request one that Cancel finds.
func (x *exchange) enlist(k session.Key) {
	if k == (session.Key{}) {
		return
	}
	ctx, end := context.WithCancelCause(x.r.Context())
	x.r = x.r.WithContext(ctx)
	e := &x.h.enlisted
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[session.Key]map[*exchange]context.CancelCauseFunc{}
	}
	if e.of[k] == nil {
		e.of[k] = map[*exchange]context.CancelCauseFunc{}
	}
	e.of[k][x] = end
}

// delist undoes enlist. The client of a cancelled request is still there: its
// answer must not look finished.
func (x *exchange) delist() {
	k := x.rec.Identity.Key
	e := &x.h.enlisted
	e.mu.Lock()
	end := e.of[k][x]
	if delete(e.of[k], x); len(e.of[k]) == 0 {
		delete(e.of, k)
	}
	e.mu.Unlock()
	if end == nil {
		return
	}
	if x.rec.Outcome == Cancelled && context.Cause(x.r.Context()) == errCancelled {
		x.cut, x.rec.Error = true, errCancelled.Error()
	}
	end(nil)
}
