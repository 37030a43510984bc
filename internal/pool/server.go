package pool

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"lmwarden/internal/engine"
	"lmwarden/internal/routing"
)

// server is one engine process as this pool sees it. Its ranks are one failure
// domain. All of it is guarded by the pool's mu.
type server struct {
	base     *url.URL
	key      string
	stated   int                 // ranks by the configuration, 0 when it does not say
	replicas []*replica          // by rank
	open     map[*Lease]struct{} // whose attempts are there
	guessed  bool                // that many of them nobody has told
	// look asks for a probe and does not wait.
	look func()

	health
	doubts
	last engine.Report // the newest

	samples []engine.Sample // of the last good scrape
	scraped time.Time       // when that began
	since   []engine.Sample // the first good scrape of this epoch

	learner engine.RankLearner
	learned []string // paths that the counters showed to be blind
}

func newServer(base *url.URL, s Server) *server {
	n := &server{base: base, key: s.Key, stated: s.Ranks, open: map[*Lease]struct{}{}, look: s.look}
	if n.look == nil {
		n.look = func() {}
	}
	return n
}

// shown is how many ranks the engine shows, 0 when it does not.
func (s *server) shown() int {
	if !s.last.Info.HasMetrics {
		return 0
	}
	return s.last.Info.Ranks
}

// discovered says whether the server told what it serves.
func (s *server) discovered() bool { return len(s.last.Info.Models) > 0 }

// take notes a report and says whether what it tells of rank routing changed.
func (s *server) take(now time.Time, r engine.Report) (blindChanged bool) {
	blindChanged = r.Info.Version != s.last.Info.Version
	if r.Epoch != s.last.Epoch {
		if s.last.Epoch > 0 {
			s.health = health{returned: r.Time}
		}
		for _, r := range s.replicas {
			r.restarted()
		}
		s.since = nil
		s.learner.Forget()
		blindChanged = blindChanged || s.learned != nil
		s.learned = nil
	}
	if s.probed(r.Time, r.Health, r.Err); s.available() {
		s.doubts.found = 0
	}
	if r.Samples != nil {
		for _, replica := range s.replicas {
			if i := replica.rank; i < min(len(r.Samples), len(s.samples)) && moved(s.samples[i], r.Samples[i]) {
				replica.sign(now)
			}
		}
		s.samples, s.scraped = r.Samples, r.Time
		if s.since == nil {
			s.since = r.Samples
		}
		if path, found := s.learner.Scrape(r.Time, r.Samples); found && !slices.Contains(s.learned, path) {
			s.learned = append(s.learned, path)
			blindChanged = true
		}
	}
	s.last = r
	return blindChanged
}

// page is a rank's part of the last metrics page; false when that was not read.
func (s *server) page(rank int) (engine.Sample, bool) {
	if rank >= len(s.last.Samples) {
		return engine.Sample{}, false
	}
	return s.last.Samples[rank], true
}

// load is what the core observes of a rank.
func (s *server) load(rank int) routing.Load {
	l := routing.Load{
		Running: -1, Waiting: -1, KVUsed: math.NaN(), Epoch: s.last.Epoch,
		Capacity: s.last.Info.CapacityTokens, Slots: s.last.Info.Slots, HostTier: s.last.Info.HostTier,
		// An engine without a page never had numbers that could grow old.
		Stale: s.last.Samples == nil && s.last.Err != nil,
	}
	if rank < len(s.samples) {
		now := s.samples[rank]
		l.Running, l.Waiting = count(now.Running), count(now.Waiting)
		l.KVUsed = now.KVUsed
		if now.CapacityTokens > 0 {
			l.Capacity = now.CapacityTokens
		}
	}
	return l
}

// count is a gauge as a whole number, -1 when the page lacks it.
func count(gauge float64) int {
	if math.IsNaN(gauge) {
		return -1
	}
	return int(min(gauge, math.MaxInt32))
}

// hitPercent is the share of a rank's prompt tokens that came from its cache
// since the gateway first saw this epoch; NaN when nothing was asked since, or
// the engine does not count it.
func (s *server) hitPercent(rank int) float64 {
	if rank >= len(s.samples) || rank >= len(s.since) {
		return math.NaN()
	}
	was, is := s.since[rank], s.samples[rank]
	// prefix_cache_queries counts a waiting request at every step on versions
	// before 0.27, so the prompt counters come first.
	if is.CachedTokens >= 0 && was.CachedTokens >= 0 && is.PromptTokens > was.PromptTokens && was.PromptTokens >= 0 {
		return percent(is.CachedTokens-was.CachedTokens, is.PromptTokens-was.PromptTokens)
	}
	if is.CachedTokens < 0 && was.PrefixQueries >= 0 && is.PrefixQueries > was.PrefixQueries {
		return percent(is.PrefixHits-was.PrefixHits, is.PrefixQueries-was.PrefixQueries)
	}
	return math.NaN()
}

func percent(part, whole float64) float64 { return min(max(100*part/whole, 0), 100) }

// Observe takes a report on the server with this index in Options.Servers. An
// older report than the last one is dropped.
func (p *Pool) Observe(index int, r engine.Report) {
	p.mu.Lock()
	var s *server
	if index >= 0 && index < len(p.servers) {
		s = p.servers[index]
	}
	p.mu.Unlock()
	p.hear(s, r)
}

// hear takes a report on a server; a server that is not in the pool is ignored.
func (p *Pool) hear(s *server, r engine.Report) {
	p.mu.Lock()
	if !slices.Contains(p.servers, s) || r.Time.Before(s.last.Time) {
		p.mu.Unlock()
		return
	}
	before := s.last
	now := time.Now()
	if s.take(now, r) {
		p.blind = nil
	}
	if s.gone {
		p.doubt(now, s)
	}
	p.recognise(now, s)
	p.settle(now, s)
	p.unlock()
	logReport(p.log, s.base, before, r)
}

// settle numbers the replicas and tells the core the load of servers that were
// heard or are new, and the states. Callers hold mu.
func (p *Pool) settle(now time.Time, heard ...*server) {
	grown, err := p.number(now)
	if err != nil {
		p.note(slog.LevelError, "model cannot be served", "error", err)
	}
	if p.core == nil {
		return
	}
	for _, s := range p.servers {
		if slices.Contains(heard, s) || slices.Contains(grown, s) {
			p.observe(now, s)
		}
		p.refresh(now, s)
	}
}

// observe tells the core the load of a server's replicas.
func (p *Pool) observe(now time.Time, s *server) {
	if s.last.Time.IsZero() {
		return
	}
	for _, r := range s.replicas {
		p.core.Observe(now, r.index, s.load(r.rank))
	}
}

// recognise finds the served name when the first server tells what it serves.
func (p *Pool) recognise(now time.Time, s *server) {
	if !p.found.IsZero() || !s.discovered() {
		return
	}
	info := s.last.Info
	at := slices.IndexFunc(info.Models, func(m engine.Model) bool { return m.ID == cmp.Or(p.configured.ServedName, p.name) })
	if at < 0 && p.configured.ServedName != "" {
		return // it serves another model
	}
	m := info.Models[max(at, 0)]
	p.found, p.served, p.root = now, m.ID, m.Root
}

// nameOn is the name by which a server knows the pool's model. It is false when
// the server serves other models only; the name is empty while no server was
// asked.
func (p *Pool) nameOn(s *server) (string, bool) {
	if !s.discovered() || s.last.Info.Serves(p.served) {
		return p.served, true
	}
	models := s.last.Info.Models
	for _, m := range models {
		if m.Root == p.root {
			return m.ID, true
		}
	}
	// The configuration says that this server is one of the model's, under
	// whatever name; which name is clear when it has one model only.
	if p.configured.ServedName == "" && len(families(models)) == 1 {
		return models[0].ID, true
	}
	return "", false
}

// trouble is what is wrong with the server, empty when nothing is.
func (p *Pool) trouble(now time.Time, s *server) string {
	var list []string
	if s.last.Err != nil {
		list = append(list, s.last.Err.Error())
	}
	for _, t := range []string{s.health.trouble(), s.doubts.trouble()} {
		if t != "" && !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	for _, r := range s.replicas {
		if t := r.progress.trouble(now); t != "" {
			list = append(list, fmt.Sprintf("replica %d is %s", r.index, t))
		}
	}
	if _, ok := p.nameOn(s); !ok {
		list = append(list, fmt.Sprintf("serves %q, not %q: correct the engine's URL or the served name", modelIDs(s.last.Info.Models), p.served))
	}
	switch shown, used := s.shown(), len(s.replicas); {
	case shown == 0 || used == 0:
	case shown < used:
		list = append(list, fmt.Sprintf("the engine has %s, %d were expected: those above are down", ranks(shown), used))
	case shown > used:
		list = append(list, fmt.Sprintf("the engine has %s, the configuration says %d: correct it to use them all", ranks(shown), used))
	}
	return strings.Join(list, "; ")
}

func ranks(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// state is what a rank may be given.
func (p *Pool) state(s *server, r *replica) routing.State {
	_, serves := p.nameOn(s)
	shown := s.shown()
	switch {
	case s.gone, !serves, shown > 0 && r.rank >= shown:
		return routing.Down
	case !s.available():
		return routing.Ejected
	case r.drained:
		return routing.Draining
	case r.stuck:
		return routing.Stuck
	case !s.discovered():
		return routing.Unknown
	}
	return routing.Ready
}

// refresh tells the core the state of a server's replicas.
func (p *Pool) refresh(now time.Time, s *server) {
	for _, r := range s.replicas {
		from, to := r.state, p.state(s, r)
		if to == from || r.index == routing.None {
			continue
		}
		r.state = to
		if from.String() != to.String() {
			args := []any{"replica", r.index, "from", from.String(), "to", to.String()}
			if to != routing.Ready {
				if why := p.why(now, r); why != "" {
					args = append(args, "why", why)
				}
			}
			p.note(slog.LevelInfo, "replica state", args...)
		}
		p.carryOut(now, nil, p.core.SetState(now, r.index, to))
	}
}

// why explains a replica's state.
func (p *Pool) why(now time.Time, r *replica) string {
	switch r.state {
	case routing.Draining:
		return string(routing.ByOperator)
	case routing.Stuck:
		return r.progress.trouble(now)
	}
	return p.trouble(now, r.server)
}

// logReport logs when trouble with a server begins and ends, not while it lasts,
// and its restarts.
func logReport(log *slog.Logger, base *url.URL, before, now engine.Report) {
	switch {
	case now.Err != nil && (before.Err == nil || before.Health != now.Health):
		log.Warn("engine not read", "url", base.String(), "error", now.Err)
	case now.Err == nil && before.Err != nil:
		log.Info("engine read again", "url", base.String())
	}
	if !before.Time.IsZero() && now.Epoch > before.Epoch {
		log.Info("engine restarted", "url", base.String(), "epoch", now.Epoch)
	}
}

// blindOn tells by server where the engine ignores the rank on a path; nil when
// nowhere. The slices are shared and never written to again.
func (p *Pool) blindOn(path string) []bool {
	if blind, known := p.blind[path]; known {
		return blind
	}
	var blind []bool
	for i, s := range p.servers {
		if len(s.replicas) > 1 && s.blindOn(path) {
			if blind == nil {
				blind = make([]bool, len(p.servers))
			}
			blind[i] = true
		}
	}
	if len(p.blind) < maxBlindPaths {
		if p.blind == nil {
			p.blind = map[string][]bool{}
		}
		p.blind[path] = blind
	}
	return blind
}

func (s *server) blindOn(path string) bool {
	return !engine.HonoursRank(s.last.Info, path) || slices.Contains(s.learned, path)
}

// blindPaths lists the generation routes on which a server of several ranks
// ignores the rank header.
func (s *server) blindPaths() []string {
	if len(s.replicas) < 2 || !s.discovered() {
		return nil
	}
	paths := append(engine.BlindPaths(s.last.Info), s.learned...)
	slices.Sort(paths)
	return slices.Compact(paths)
}

// families groups an engine's names by model: equal weights are one, and so are
// an adapter and what it is laid over, since they share the engine's ranks.
func families(models []engine.Model) [][]engine.Model {
	var groups [][]engine.Model
	for _, m := range models {
		at := slices.IndexFunc(groups, func(g []engine.Model) bool {
			return slices.ContainsFunc(g, func(o engine.Model) bool {
				return o.Root == m.Root || o.ID == m.Parent || o.Parent == m.ID
			})
		})
		if at < 0 {
			groups = append(groups, nil)
			at = len(groups) - 1
		}
		groups[at] = append(groups[at], m)
	}
	return groups
}

func modelIDs(models []engine.Model) []string {
	list := make([]string, len(models))
	for i, m := range models {
		list[i] = m.ID
	}
	return list
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
