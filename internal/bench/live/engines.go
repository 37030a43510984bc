package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"lmwarden/internal/bench"
	"lmwarden/internal/engine"
)

const (
	// pollEvery is how often the engines' pages are read, in the System's time.
	pollEvery = time.Second
	// pollAtMost bounds the polls of fast simulated engines, on the clock.
	pollAtMost = 50 * time.Millisecond
	// pollWithin bounds one reading, on the clock.
	pollWithin = 3 * time.Second
	// fewestPolls are those of a step short of which nobody knows how busy it was.
	fewestPolls = 5
	// staleAfter is after how many failed readings in a row an engine's numbers are
	// no longer known. One that refuses connections is dead, and counts nothing.
	staleAfter = 3

	maxPage = 32 << 20
	// resetWithin is how long engines may take to let go of what was cut, before
	// their caches can be emptied.
	resetWithin = 5 * time.Second
)

// engines are the engines' own counters, read regularly.
type engines struct {
	client *http.Client
	now    func() time.Duration // the System's time
	every  time.Duration        // on the clock
	stop   context.CancelFunc
	done   sync.WaitGroup

	polling sync.Mutex // one poll at a time; taken before mu

	mu   sync.Mutex
	all  []*polled     // guarded by mu, with all that is in it
	last time.Duration // guarded by mu: the poll before
	busy time.Duration // guarded by mu: sum over the replicas
	read int           // guarded by mu: polls until now
}

// polled is one engine.
type polled struct {
	url       *url.URL
	ranks     []rank
	blockSize int
	failures  int   // in a row
	err       error // of the latest reading
}

type rank struct {
	running, waiting            float64 // NaN when not told
	prompt, cached, preemptions counter
}

// counter adds up what a counter has grown by. One that falls has begun anew,
// with its engine; what it had grown by since the last look is lost.
type counter struct {
	last, total float64
	seen        bool
}

func (c *counter) see(v float64) {
	if v < 0 { // the page lacks it
		return
	}
	switch {
	case c.seen && v >= c.last:
		c.total += v - c.last
	case c.seen:
		c.total += v
	}
	c.last, c.seen = v, true
}

// newEngines starts to read the pages, every so often.
func newEngines(client *http.Client, urls []*url.URL, now func() time.Duration, every time.Duration) *engines {
	e := &engines{
		client: client, now: now, every: max(every, pollAtMost),
	}
	for _, u := range urls {
		e.all = append(e.all, &polled{url: u})
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	if len(urls) > 0 {
		e.done.Go(func() { e.run(ctx) })
	}
	return e
}

func (e *engines) run(ctx context.Context) {
	tick := time.NewTicker(e.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.poll(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (e *engines) close() {
	e.stop()
	e.done.Wait()
}

// poll reads all pages once.
func (e *engines) poll(ctx context.Context) {
	e.polling.Lock()
	defer e.polling.Unlock()
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	pages := make([]engine.Page, len(e.all))
	errs := make([]error, len(e.all))
	var reading sync.WaitGroup
	for i, p := range e.all {
		reading.Go(func() { pages[i], errs[i] = e.page(ctx, p.url) })
	}
	reading.Wait()

	e.mu.Lock()
	defer e.mu.Unlock()
	running := 0
	for i, p := range e.all {
		p.see(pages[i], errs[i])
		for _, r := range p.ranks {
			if r.running > 0 {
				running++
			}
		}
	}
	now := e.now()
	e.busy += time.Duration(running) * (now - e.last)
	e.last = now
	e.read++
}

func (e *engines) page(ctx context.Context, base *url.URL) (engine.Page, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", base.JoinPath("metrics").String(), nil)
	if err != nil {
		return engine.Page{}, err
	}
	res, err := e.client.Do(req)
	if err != nil {
		return engine.Page{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxPage))
	if err != nil {
		return engine.Page{}, err
	}
	if res.StatusCode != http.StatusOK {
		return engine.Page{}, fmt.Errorf("GET %s: status %d", req.URL, res.StatusCode)
	}
	return engine.ParsePage(text)
}

func (p *polled) see(page engine.Page, err error) {
	p.err = err
	if err != nil {
		p.failures++
		for i := range p.ranks {
			switch {
			case errors.Is(err, syscall.ECONNREFUSED):
				p.ranks[i].running, p.ranks[i].waiting = 0, 0
			case p.failures >= staleAfter:
				p.ranks[i].running, p.ranks[i].waiting = math.NaN(), math.NaN()
			}
		}
		return
	}
	p.failures = 0
	if page.BlockSize > 0 {
		p.blockSize = page.BlockSize
	}
	for len(p.ranks) < len(page.Samples) {
		p.ranks = append(p.ranks, rank{})
	}
	for i, s := range page.Samples {
		r := &p.ranks[i]
		r.running, r.waiting = s.Running, s.Waiting
		// What was asked of the cache counts when a request is admitted, prompt tokens
		// when they are computed. The latter would leave out what was cut in its
		// prefill, which are misses more often than not.
		prompt, cached := s.PrefixQueries, s.PrefixHits
		if prompt < 0 || cached < 0 {
			prompt, cached = s.PromptTokens, s.CachedTokens
		}
		r.prompt.see(prompt)
		r.cached.see(cached)
		r.preemptions.see(s.Preemptions)
	}
}

// known reports whether the numbers are those of now.
func (p *polled) known() bool {
	return len(p.ranks) > 0 && (p.failures < staleAfter || errors.Is(p.err, syscall.ECONNREFUSED))
}

// counters are the sums over all replicas; what one of them does not tell is not
// known of any.
func (e *engines) counters() bench.Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := bench.Counters{BusySeconds: e.busy.Seconds()}
	if len(e.all) == 0 {
		c.BusySeconds = math.NaN()
	}
	add := func(to *float64, from counter) {
		if !from.seen {
			*to = math.NaN()
		}
		*to += from.total
	}
	for _, p := range e.all {
		if !p.known() {
			c.BusySeconds = math.NaN()
		}
		for _, r := range p.ranks {
			add(&c.PromptTokens, r.prompt)
			add(&c.CachedTokens, r.cached)
			add(&c.Preemptions, r.preemptions)
		}
	}
	if math.IsNaN(c.BusySeconds) {
		return bench.Counters{PromptTokens: math.NaN(), CachedTokens: math.NaN(), BusySeconds: math.NaN(), Preemptions: math.NaN()}
	}
	return c
}

// polls is how often the pages have been read.
func (e *engines) polls() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.read
}

// load is the requests running and waiting on each replica, NaN where it is not
// known.
func (e *engines) load() (running, waiting []float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.all {
		for _, r := range p.ranks {
			running, waiting = append(running, r.running), append(waiting, r.waiting)
		}
	}
	return running, waiting
}

// blockTokens is the unit of the caches; vLLM's when no engine tells it.
func (e *engines) blockTokens() int {
	const usual = 16
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.all {
		if p.blockSize > 0 {
			return p.blockSize
		}
	}
	return usual
}

// places are the replicas as far as the pages tell them.
func (e *engines) places() []place {
	e.mu.Lock()
	defer e.mu.Unlock()
	var places []place
	for _, p := range e.all {
		for i := range p.ranks {
			at := place{engine: p.url, rank: i}
			if len(p.ranks) == 1 {
				at.rank = -1
			}
			places = append(places, at)
		}
	}
	return places
}

// problems are the engines whose numbers will be missing.
func (e *engines) problems() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	if len(e.all) == 0 {
		all = append(all, "no engine is known: prefix hits and busy replicas are not measured")
	}
	for _, p := range e.all {
		if p.err != nil {
			all = append(all, fmt.Sprintf("engine %s: prefix hits and busy replicas are not measured: %v", p.url, p.err))
		}
	}
	return all
}

// urls are the engines' base URLs.
func (e *engines) urls() []*url.URL {
	var all []*url.URL
	for _, p := range e.all {
		all = append(all, p.url)
	}
	return all
}

// reset empties an engine's cache. It tries until the engine has let go of what
// was cut a moment ago.
func (e *engines) reset(base *url.URL) error {
	ctx, cancel := context.WithTimeout(context.Background(), resetWithin)
	defer cancel()
	for {
		var answer struct{ Success *bool }
		err := e.tryReset(ctx, base, &answer.Success)
		if err != nil || answer.Success == nil || *answer.Success {
			return err
		}
		select {
		case <-time.After(pollAtMost):
		case <-ctx.Done():
			return errors.New("it is in use")
		}
	}
}

func (e *engines) tryReset(ctx context.Context, base *url.URL, success **bool) error {
	req, err := http.NewRequestWithContext(ctx, "POST", base.JoinPath("reset_prefix_cache").String(), nil)
	if err != nil {
		return err
	}
	res, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	switch {
	case err != nil:
		return err
	case res.StatusCode == http.StatusNotFound:
		return errors.New("it has no route to empty it (vLLM has one with VLLM_SERVER_DEV_MODE=1)")
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d: %s", res.StatusCode, errorText(text))
	}
	if strings.Contains(strings.ReplaceAll(string(text), " ", ""), `"success":false`) {
		no := false
		*success = &no
	}
	return nil
}
