package engine

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"
)

// minGap is the shortest time between the starts of two scrapes, so that a burst
// of nudges does not become a burst of scrapes.
const minGap = 100 * time.Millisecond

// WatcherOptions are what NewWatcher needs.
type WatcherOptions struct {
	Base *url.URL // of the server, as from ParseBase
	Key  string   // the engine's API key, empty for none
	// Client does the requests; NewClient gives one. Required.
	Client *http.Client
	// Interval between the starts of two scrapes. Default 1 s. A scrape that
	// takes longer delays the next; two never overlap.
	Interval time.Duration
	// Timeout of one scrape, health included. Default 5 s: a server that is short
	// of CPU takes seconds. A discovery may take twice as long.
	Timeout time.Duration
	// Report takes each result, on the goroutine of Run. Required.
	Report func(Report)
}

// Watcher discovers one server, scrapes it regularly, and tells when its process
// was replaced.
type Watcher struct {
	o     WatcherOptions
	key   atomic.Pointer[string]
	nudge chan struct{}

	// The rest belongs to the goroutine of Run.
	probe      prober
	info       Info
	rediscover bool
	epoch      int
	last       Page // the last good page
	lost       bool // the server was down since the last good answer
}

// NewWatcher returns a watcher that does nothing before Run.
func NewWatcher(o WatcherOptions) (*Watcher, error) {
	switch {
	case o.Base == nil:
		return nil, errors.New("watcher without a base URL")
	case o.Client == nil:
		return nil, errors.New("watcher without a client")
	case o.Report == nil:
		return nil, errors.New("watcher without a report function")
	}
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	w := &Watcher{
		o:          o,
		nudge:      make(chan struct{}, 1),
		rediscover: true,
		epoch:      1,
	}
	w.key.Store(&o.Key)
	return w, nil
}

// SetKey gives the server another API key, which is used from the next scrape on,
// at once. Safe for concurrent use.
func (w *Watcher) SetKey(key string) {
	w.key.Store(&key)
	w.Nudge()
}

// Nudge asks for a scrape now, since something happened to the server. It does
// not wait. Safe for concurrent use.
func (w *Watcher) Nudge() {
	select {
	case w.nudge <- struct{}{}:
	default: // one is asked for already
	}
}

// Run scrapes until ctx ends, at once and then on the ticks of the interval. It
// returns nil. It must run once only.
func (w *Watcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-w.nudge: // the scrape that begins now answers it
		default:
		}
		began := time.Now()
		w.probe = prober{client: w.o.Client, base: w.o.Base, key: *w.key.Load()}
		report := w.scrape(ctx)
		if ctx.Err() != nil {
			return nil // the failure would be ours, not the server's
		}
		report.Time = began
		w.o.Report(report)

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-w.nudge:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Until(began.Add(minGap))):
			}
		}
	}
}

// scrape does one round: health, discovery if it is due, metrics.
func (w *Watcher) scrape(ctx context.Context) Report {
	health, page, err := w.look(ctx)
	if health == Down {
		w.lost = true
	}
	if page != nil {
		if w.restarted(*page) {
			w.epoch++
			w.rediscover = true
		}
		if len(page.Samples) != w.info.Ranks || !w.info.HasMetrics {
			w.rediscover = true
		}
		w.last = *page
	}
	if health == Up && w.lost && (page != nil || !w.info.HasMetrics) {
		if page == nil && w.info.Ranks > 0 {
			// Without a page nothing but its absence tells of another process.
			w.epoch++
			w.rediscover = true
		}
		w.lost = false
	}
	if w.rediscover && health != Down {
		if derr := w.discover(ctx); derr != nil {
			err = derr
		}
	}
	report := Report{Info: w.info, Health: health, Epoch: w.epoch, Err: err}
	if page != nil {
		report.Samples = page.Samples
	}
	return report
}

// look asks for health and metrics. The page is nil when there is none.
func (w *Watcher) look(ctx context.Context) (Health, *Page, error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	health, healthErr := w.probe.health(ctx, kindOf(w.info.Kind))
	if health == Down {
		return Down, nil, healthErr
	}
	page, err := w.probe.metrics(ctx, w.info.Models)
	switch {
	case err == nil:
		// A server that dies keeps its page, so the page does not overrule a
		// health route that says dead; one that is only slow is up.
		return Up, &page, nil
	case Unreachable(err) && (health != Up || errors.Is(err, syscall.ECONNREFUSED)):
		// A page that breaks beside a good health answer is a broken page.
		return Down, nil, err
	case errors.Is(err, errNoPage) && w.info.Ranks > 0 && !w.info.HasMetrics:
		return health, nil, healthErr // nothing to miss
	case healthErr != nil:
		return health, nil, healthErr
	}
	return health, nil, err
}

func (w *Watcher) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*w.o.Timeout)
	defer cancel()
	info, err := Discover(ctx, w.o.Client, w.o.Base, w.probe.key)
	if err != nil {
		return err
	}
	w.info, w.rediscover = info, false
	return nil
}

// restarted compares a page with the last one.
func (w *Watcher) restarted(now Page) bool {
	if w.last.Samples == nil {
		return false
	}
	for rank := range min(len(w.last.Samples), len(now.Samples)) {
		if fell(w.last.Samples[rank], now.Samples[rank]) {
			return true
		}
	}
	if w.last.StartTime > 0 && now.StartTime > 0 {
		return w.last.StartTime != now.StartTime
	}
	// It was gone, came back, and cannot prove that it is the same process.
	return w.lost
}

// fell reports whether a counter is lower than it was. Counters that a page
// lacks are -1 and prove nothing.
func fell(was, is Sample) bool {
	return lower(was.PromptTokens, is.PromptTokens) ||
		lower(was.CachedTokens, is.CachedTokens) ||
		lower(was.PrefixQueries, is.PrefixQueries) ||
		lower(was.PrefixHits, is.PrefixHits) ||
		lower(was.GenerationTokens, is.GenerationTokens) ||
		lower(was.Preemptions, is.Preemptions)
}

func lower(was, is float64) bool { return is >= 0 && is < was }
