package stats

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// TokenPoint is the tokens of the requests that ended within a step.
type TokenPoint struct {
	Time time.Time // the step's beginning
	Tokens
}

// TokenSeries is one line or stack of a chart.
type TokenSeries struct {
	// Name is the replica's index, "engine" or "none", or the client's name, which
	// is empty when it has none. Empty without a group.
	Name   string
	Points []TokenPoint // every step of the range
	Total  Tokens
}

// TokenChart answers Store.Tokens.
type TokenChart struct {
	Query  Query // as it was carried out
	Series []TokenSeries
	Total  Tokens
}

// Tokens are the tokens per step, up to half a second ago. Without a group there
// is one series, else one for each member that had requests, those with most
// tokens first. Errors are of type *QueryError or wrap ErrUnavailable.
func (s *Store) Tokens(ctx context.Context, q Query) (TokenChart, error) {
	chart := TokenChart{}
	db, err := s.asked(&q)
	if err != nil {
		return chart, err
	}
	chart.Query = q
	series := map[int64]*TokenSeries{}
	if q.Group == GroupNone {
		series[0] = newTokenSeries(&q)
	}
	where, args := db.ofModel(&q, q.From.UnixMilli(), q.Step.Milliseconds(), q.Group.dimension(), q.From.UnixMilli(), q.To.UnixMilli())
	series, err = collect(ctx, db.read, series, func(all map[int64]*TokenSeries, row *sql.Rows) (map[int64]*TokenSeries, error) {
		var member, i int64
		var t Tokens
		if err := row.Scan(&member, &i, &t.Cached, &t.Computed, &t.Unmeasured, &t.Completion); err != nil {
			return nil, err
		}
		line := all[member]
		if line == nil {
			line = newTokenSeries(&q)
			all[member] = line
		}
		line.Points[i].Tokens = t
		line.Total = line.Total.plus(t)
		return all, nil
	}, fmt.Sprintf(`SELECT member, (step - ?) / ?, sum(cached), sum(computed), sum(unmeasured), sum(completion)
		FROM sums_%s WHERE dimension = ? AND step >= ? AND step < ? %s GROUP BY 1, 2`, resolutionOf(q.Step).name, where), args...)
	if err != nil {
		return chart, err
	}
	names, err := db.names(ctx, q.Group)
	if err != nil {
		return chart, err
	}
	for _, member := range slices.Sorted(maps.Keys(series)) {
		line := series[member]
		line.Name = names(member)
		chart.Total = chart.Total.plus(line.Total)
		chart.Series = append(chart.Series, *line)
	}
	slices.SortStableFunc(chart.Series, func(a, b TokenSeries) int { return cmp.Compare(b.Total.all(), a.Total.all()) })
	return chart, nil
}

func newTokenSeries(q *Query) *TokenSeries {
	line := &TokenSeries{Points: make([]TokenPoint, q.points())}
	for i := range line.Points {
		line.Points[i].Time = q.at(i)
	}
	return line
}

// RequestPoint is the requests that ended within a step.
type RequestPoint struct {
	Time time.Time
	Counts
	// TTFB is of those that had a first byte, Waited of those that the gateway held.
	TTFB, Duration, Waited Quantiles
}

func (p *RequestPoint) tell(l *latency) {
	p.TTFB, p.Duration, p.Waited = l.ttfb.quantiles(), l.duration.quantiles(), l.waited.quantiles()
}

// RequestSeries is one line or stack of a chart.
type RequestSeries struct {
	Name   string // as in TokenSeries
	Points []RequestPoint
	Total  RequestPoint // over the whole range; its quantiles are true merges
}

// RequestChart answers Store.Requests.
type RequestChart struct {
	Query  Query
	Series []RequestSeries
}

// Requests are the requests per step: their number, how they ended, where they
// went, and how long they took. Series and errors are as those of Tokens; those
// with most requests come first.
func (s *Store) Requests(ctx context.Context, q Query) (RequestChart, error) {
	chart := RequestChart{}
	db, err := s.asked(&q)
	if err != nil {
		return chart, err
	}
	chart.Query = q
	lines := map[int64]*requestLine{}
	if q.Group == GroupNone {
		lines[0] = newRequestLine(&q)
	}
	var ttfb, duration, waited sql.RawBytes // overwritten by each row
	where, args := db.ofModel(&q, q.From.UnixMilli(), q.Step.Milliseconds(), q.Group.dimension(), q.From.UnixMilli(), q.To.UnixMilli())
	lines, err = collect(ctx, db.read, lines, func(all map[int64]*requestLine, row *sql.Rows) (map[int64]*requestLine, error) {
		var member int64
		var i int
		var c Counts
		if err := row.Scan(&member, &i, &c.Requests, &c.OK, &c.ClientError, &c.EngineError, &c.GatewayError, &c.Cancelled,
			&c.Placed, &c.Stayed, &c.Spilled, &c.Moved, &ttfb, &duration, &waited); err != nil {
			return nil, err
		}
		line := all[member]
		if line == nil {
			line = newRequestLine(&q)
			all[member] = line
		}
		return all, line.add(i, c, ttfb, duration, waited)
	}, fmt.Sprintf(`SELECT member, (step - ?) / ?, requests, ok, client_error, engine_error, gateway_error, cancelled,
		placed, stayed, spilled, moved, ttfb, duration, waited
		FROM sums_%s WHERE dimension = ? AND step >= ? AND step < ? %s ORDER BY dimension, step`, resolutionOf(q.Step).name, where), args...)
	if err != nil {
		return chart, err
	}
	names, err := db.names(ctx, q.Group)
	if err != nil {
		return chart, err
	}
	for _, member := range slices.Sorted(maps.Keys(lines)) {
		line := lines[member]
		line.end()
		line.Name = names(member)
		chart.Series = append(chart.Series, line.RequestSeries)
	}
	slices.SortStableFunc(chart.Series, func(a, b RequestSeries) int { return cmp.Compare(b.Total.Requests, a.Total.Requests) })
	return chart, nil
}

// requestLine is a series that grows step by step. It holds the distributions of
// one step at a time.
type requestLine struct {
	RequestSeries
	at        int     // the step that step is of
	step, all latency // of the step, and of those before
}

func newRequestLine(q *Query) *requestLine {
	line := &requestLine{RequestSeries: RequestSeries{Points: make([]RequestPoint, q.points())}}
	for i := range line.Points {
		line.Points[i].Time = q.at(i)
	}
	line.Total.Time = q.From
	return line
}

// add adds a sum to a step, which is not before those that were added to.
func (l *requestLine) add(i int, c Counts, ttfb, duration, waited []byte) error {
	if i != l.at {
		l.endStep()
		l.at = i
	}
	p := &l.Points[i]
	p.Counts, l.Total.Counts = p.Counts.plus(c), l.Total.Counts.plus(c)
	return l.step.merge(ttfb, duration, waited)
}

func (l *requestLine) endStep() {
	l.Points[l.at].tell(&l.step)
	l.all.join(&l.step)
	l.step.reset()
}

func (l *requestLine) end() {
	l.endStep()
	l.Total.tell(&l.all)
}

// at is the beginning of a step.
func (q *Query) at(i int) time.Time { return q.From.Add(time.Duration(i) * q.Step) }

// asked checks a query and finds the database for it.
func (s *Store) asked(q *Query) (*database, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	return s.reading()
}

// ofModel adds the condition on a query's model to arguments.
func (db *database) ofModel(q *Query, args ...any) (where string, all []any) {
	if q.Model == "" {
		return "", args
	}
	return "AND model = (SELECT id FROM words WHERE word = ?)", append(args, q.Model)
}

// names tells how the members of a group are called.
func (db *database) names(ctx context.Context, g Group) (func(member int64) string, error) {
	switch g {
	case GroupReplica:
		return func(member int64) string { return ReplicaName(int(member)) }, nil
	case GroupClient:
		words, err := db.allWords(ctx)
		return func(member int64) string { return words[member] }, err
	}
	return func(int64) string { return "" }, nil
}

// ReplicaName is how series and exports name a replica.
func ReplicaName(replica int) string {
	switch replica {
	case EngineChosen:
		return "engine"
	case NoReplica:
		return "none"
	}
	return strconv.Itoa(replica)
}

// allWords maps numbers to words for a reader.
func (db *database) allWords(ctx context.Context) (map[int64]string, error) {
	type words = map[int64]string
	return collect(ctx, db.read, words{}, func(all words, row *sql.Rows) (words, error) {
		var id int64
		var w string
		err := row.Scan(&id, &w)
		all[id] = w
		return all, err
	}, `SELECT id, word FROM words`)
}
