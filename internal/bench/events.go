package bench

import "time"

// events are what is to happen in virtual time: a binary heap by time, in which
// equal times keep the order of their scheduling.
type events struct {
	heap  []event
	order uint64
}

type event struct {
	at    time.Duration
	order uint64
	do    func()
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

func (q *events) add(at time.Duration, do func()) {
	q.order++
	h := append(q.heap, event{at, q.order, do})
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	q.heap = h
}

// first is the time of the next event; there must be one.
func (q *events) first() time.Duration { return q.heap[0].at }

// take removes the next event.
func (q *events) take() event {
	h := q.heap
	next, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h[child].before(h[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	q.heap = h
	return next
}
