package proxy

import "sync"

// open counts the requests on engines' routes from their heads to their ends
// and, once stopped, lets no further one in.
type open struct {
	mu      sync.Mutex
	n       int           // guarded by mu
	drained chan struct{} // guarded by mu; nil before stop; closed when n is 0
}

// enter says whether a request may come in; leave must follow then.
func (o *open) enter() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drained != nil {
		return false
	}
	o.n++
	return true
}

func (o *open) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n == 0 && o.drained != nil {
		close(o.drained)
	}
}

// stop returns what is closed when all that had entered have left.
func (o *open) stop() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drained == nil {
		o.drained = make(chan struct{})
		if o.n == 0 {
			close(o.drained)
		}
	}
	return o.drained
}

func (o *open) stopped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.drained != nil
}
