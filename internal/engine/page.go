package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// maxRanks bounds what one page may make us keep.
const maxRanks = 1024

// errNoMetrics says that a page has no metric of an engine that we know.
var errNoMetrics = errors.New("no engine metrics on the page")

// Page is a metrics page, as far as we know its metrics.
type Page struct {
	// Kind is the engine whose metrics these are, as in Info.Kind.
	Kind string
	// Samples has one entry per distinct engine label, in numeric order. The
	// place in it is what the rank header takes: a node of a hybrid server
	// labels its engines 4..7 and takes 0..3.
	Samples []Sample
	// BlockSize is in tokens, 0 when not told.
	BlockSize int
	// PrefixCaching is false when the page says that it is off.
	PrefixCaching bool
	// HostTier is set when the page says that the host-memory KV tier is on.
	HostTier bool
	// StartTime is the start of the serving process in Unix seconds, 0 when not
	// told (servers with several API processes do not tell).
	StartTime float64
}

// metric is one that we know. Those that were renamed are there under each name,
// so that a page with both does not count double.
type metric uint8

const (
	running metric = iota
	waiting
	kvUsed
	kvUsedOld
	promptTokens
	cachedTokens
	prefixQueries
	prefixQueriesOld
	prefixHits
	prefixHitsOld
	generationTokens
	preemptions
	// Two parts of promptTokens, of engines that do not tell the sum.
	promptComputed
	promptReused
	capacityTokens
	pageSize
	metrics // the number of those that have a value

	byMode      // a label tells which one it is
	cacheConfig // a series whose labels are the information
	startTime
	unknown
)

// row collects the values of one engine label under one model name.
type row struct {
	engine, model string
	values        [metrics]float64 // NaN where the page has none
}

// series is one line of a page.
type series struct {
	what          metric
	engine, model []byte
	config        config
}

// config is vLLM's cache_config_info series of one engine label.
type config struct {
	engine                               string
	blockSize, totalBlocks, perRankToken int64
	prefixCachingOff, hostTier           bool
}

type pageParser struct {
	kind    *kind  // of the page, nil before the first metric of one
	series  series // of the line that is being read
	rows    []row
	hint    int // where the next row is likely to be: pages list the engines in the same order
	configs []config
	start   float64
}

// ParsePage reads a page in the Prometheus text format. Lines of metrics that we
// do not know are passed over unread. When the page has series of one of the
// given models, only those count; otherwise all do, and the values of several
// model names on one engine are added up (KV use: the highest).
//
// The error says that a known line is broken or that the page has no engine
// metrics at all.
func ParsePage(page []byte, models ...string) (Page, error) {
	var p pageParser
	for rest, n := page, 1; len(rest) > 0; n++ {
		line := rest
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line, rest = rest[:i], rest[i+1:]
		} else {
			rest = nil
		}
		if err := p.line(line); err != nil {
			return Page{}, fmt.Errorf("metrics page, line %d: %w", n, err)
		}
	}
	return p.page(models)
}

// line reads one line. Histograms and what else we do not know, most of a page,
// leave at the first or the second return.
func (p *pageParser) line(line []byte) error {
	line = skipBlanks(line)
	of := p.kindOf(line)
	if of == nil && !bytes.HasPrefix(line, []byte("process_start")) {
		return nil
	}
	name := line
	if i := bytes.IndexAny(line, "{ \t"); i >= 0 {
		name = line[:i]
	}
	s := &p.series
	*s = series{what: unknown}
	if of != nil {
		s.what = of.metric(name)
	} else if string(name) == "process_start_time_seconds" {
		s.what = startTime
	}
	if s.what == unknown {
		return nil
	}
	rest := skipBlanks(line[len(name):])
	if len(rest) > 0 && rest[0] == '{' {
		var ok bool
		rest, ok = scanLabels(rest[1:], func(label, value []byte) {
			if of != nil {
				of.label(s, label, value)
			}
		})
		if !ok {
			return fmt.Errorf("%s has broken labels", name)
		}
	}
	value, ok := scanValue(rest)
	if !ok {
		return fmt.Errorf("%s has a broken value", name)
	}
	if of != nil {
		p.kind = of
	}

	switch s.what {
	case startTime:
		p.start = value
	case cacheConfig:
		s.config.engine = string(s.engine)
		p.configs = append(p.configs, s.config)
	case byMode, unknown: // its labels say that it is none of ours
	default:
		r, err := p.row(s.engine, s.model)
		if err != nil {
			return err
		}
		r.add(s.what, value)
	}
	if len(p.configs) > maxRanks {
		return fmt.Errorf("more than %d series of %s", maxRanks, name)
	}
	return nil
}

// kindOf is the kind that a line is a metric of, nil for none. The first kind on
// a page is the only one.
func (p *pageParser) kindOf(line []byte) *kind {
	if p.kind != nil {
		if p.kind.measures(line) {
			return p.kind
		}
		return nil
	}
	for _, k := range kinds {
		if k.measures(line) {
			return k
		}
	}
	return nil
}

// row finds or makes the row of an engine and a model.
func (p *pageParser) row(engine, model []byte) (*row, error) {
	for i := range p.rows {
		at := (p.hint + i) % len(p.rows)
		r := &p.rows[at]
		if r.engine == string(engine) && r.model == string(model) {
			p.hint = at + 1
			return r, nil
		}
	}
	if len(p.rows) == maxRanks {
		return nil, fmt.Errorf("more than %d engines", maxRanks)
	}
	r := row{engine: string(engine), model: string(model)}
	for i := range r.values {
		r.values[i] = math.NaN()
	}
	p.rows = append(p.rows, r)
	p.hint = 0
	return &p.rows[len(p.rows)-1], nil
}

// add joins a value to what the row has. Values that cannot be true (NaN,
// infinite, negative) count as absent.
func (r *row) add(m metric, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return
	}
	old := r.values[m]
	switch {
	case m == kvUsed || m == kvUsedOld:
		v = min(v, 1)
		if !math.IsNaN(old) {
			v = max(v, old)
		}
	case m == pageSize && !math.IsNaN(old):
		v = max(v, old)
	case !math.IsNaN(old):
		v = min(v+old, math.MaxFloat64)
	}
	r.values[m] = v
}

// positive reads a whole number; "None" and whatever else is not one is 0. The
// limit keeps products of two of them within range.
func positive(b []byte) int64 {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0
	}
	return n
}

// page puts the rows together: one sample per engine.
func (p *pageParser) page(models []string) (Page, error) {
	if len(p.rows) == 0 && len(p.configs) == 0 {
		return Page{}, errNoMetrics
	}
	if slices.ContainsFunc(p.rows, func(r row) bool { return slices.Contains(models, r.model) }) {
		p.rows = slices.DeleteFunc(p.rows, func(r row) bool { return r.model != "" && !slices.Contains(models, r.model) })
	}

	engines := p.engines()
	out := Page{Kind: p.kind.name, Samples: make([]Sample, len(engines)), PrefixCaching: true}
	if p.start > 0 && !math.IsInf(p.start, 0) {
		out.StartTime = p.start
	}
	for i, engine := range engines {
		merged := row{}
		for m := range merged.values {
			merged.values[m] = math.NaN()
		}
		for _, r := range p.rows {
			if r.engine == engine {
				for m, v := range r.values {
					merged.add(metric(m), v)
				}
			}
		}
		out.Samples[i] = merged.sample()
		out.BlockSize = max(out.BlockSize, int(whole(merged.values[pageSize])))
	}
	for _, c := range p.configs {
		out.BlockSize = int(c.blockSize)
		out.PrefixCaching = out.PrefixCaching && !c.prefixCachingOff
		out.HostTier = out.HostTier || c.hostTier
		if i := slices.Index(engines, c.engine); i >= 0 {
			out.Samples[i].CapacityTokens = c.capacity(len(engines))
		}
	}
	return out, nil
}

// engines lists the engine labels in numeric order. Series without the label
// count only when no series has it. The configuration series carry no model
// name, so they count only on a page that has nothing else.
func (p *pageParser) engines() []string {
	var engines []string
	for _, r := range p.rows {
		engines = append(engines, r.engine)
	}
	if len(p.rows) == 0 {
		for _, c := range p.configs {
			engines = append(engines, c.engine)
		}
	}
	slices.SortFunc(engines, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	engines = slices.Compact(engines)
	if len(engines) > 1 && engines[0] == "" {
		engines = engines[1:]
	}
	return engines
}

// capacity is the KV cache of one rank in tokens. num_gpu_blocks is the sum
// over all ranks, on the series of each rank, so the engine's own per-rank
// number comes first.
func (c config) capacity(ranks int) int64 {
	if c.perRankToken > 0 {
		return c.perRankToken
	}
	return c.totalBlocks / int64(ranks) * c.blockSize
}

func (r *row) sample() Sample {
	v := &r.values
	return Sample{
		Running:          v[running],
		Waiting:          v[waiting],
		KVUsed:           first(v[kvUsed], v[kvUsedOld], math.NaN()),
		PromptTokens:     first(v[promptTokens], min(v[promptComputed]+v[promptReused], math.MaxFloat64), v[promptComputed], -1),
		CachedTokens:     first(v[cachedTokens], v[promptReused], -1),
		PrefixQueries:    first(v[prefixQueries], v[prefixQueriesOld], -1),
		PrefixHits:       first(v[prefixHits], v[prefixHitsOld], -1),
		GenerationTokens: first(v[generationTokens], -1),
		Preemptions:      first(v[preemptions], -1),
		CapacityTokens:   whole(v[capacityTokens]),
	}
}

// whole is a gauge of tokens, 0 when the page lacks it or nobody could mean it.
func whole(v float64) int64 {
	if !(v <= 1<<40) {
		return 0
	}
	return int64(v)
}

// first is the first value that is a number, or the last one.
func first(values ...float64) float64 {
	for _, v := range values {
		if !math.IsNaN(v) {
			return v
		}
	}
	return values[len(values)-1]
}
