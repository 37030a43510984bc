package access

import (
	"fmt"
	"sync"
	"time"
)

// Limits are what may be taken at most: with a key, or of a model by everybody.
type Limits struct {
	// InFlight is how many requests may be open at once; 0 means any number.
	InFlight int
	// PerMinute is how many requests may begin in a minute, a tenth of them at once;
	// 0 means any number.
	PerMinute int
}

// Limited says that as much is taken as may be.
type Limited struct {
	// Of is "key" or "model" with the Name, and Taken what it has.
	Of, Name, Taken string
	// Retry is when it is worth to come back.
	Retry time.Duration
}

func (e *Limited) Error() string { return fmt.Sprintf("the %s %q has %s", e.Of, e.Name, e.Taken) }

// retryOpen is when to come back for a request to end; nobody knows when one does.
const retryOpen = 2 * time.Second

// account is what was taken under one name. It outlives a change of the limits.
type account struct {
	mu     sync.Mutex
	limits Limits // guarded by mu
	open   int    // guarded by mu; requests
	// next is when the request after the last one would begin if all began at even
	// intervals (the generic cell rate algorithm, ITU-T I.371). Guarded by mu.
	next time.Time
}

func (a *account) limit(l Limits) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limits = l
}

// full says why one more request may not begin, nil when it may. Callers hold mu.
func (a *account) full(now time.Time, of, name string) error {
	l := a.limits
	if l.InFlight > 0 && a.open >= l.InFlight {
		return &Limited{of, name, fmt.Sprintf("%d requests open, as many as it may", a.open), retryOpen}
	}
	if l.PerMinute > 0 {
		atOnce := (l.PerMinute + 9) / 10
		if wait := a.next.Sub(now.Add(time.Duration(atOnce-1) * l.interval())); wait > 0 {
			return &Limited{of, name, fmt.Sprintf("begun %d requests in a minute, as many as it may", l.PerMinute), wait}
		}
	}
	return nil
}

// begin counts one request. Callers hold mu.
func (a *account) begin(now time.Time) {
	a.open++
	if a.limits.PerMinute > 0 {
		if a.next.Before(now) {
			a.next = now
		}
		a.next = a.next.Add(a.limits.interval())
	}
}

func (a *account) end() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
}

func (a *account) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open
}

// interval is the time from one request to the next at an even rate.
func (l Limits) interval() time.Duration { return time.Minute / time.Duration(l.PerMinute) }
