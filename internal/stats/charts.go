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
	series, err := s.series(ctx, &q, false)
	if err != nil {
		return chart, err
	}
	chart.Query = q
	for _, line := range series {
		t := TokenSeries{Name: line.name, Points: make([]TokenPoint, q.points())}
		for i, sum := range line.sums {
			t.Points[i] = TokenPoint{q.at(i), sum.Tokens}
			t.Total = t.Total.plus(sum.Tokens)
		}
		chart.Total = chart.Total.plus(t.Total)
		chart.Series = append(chart.Series, t)
	}
	slices.SortStableFunc(chart.Series, func(a, b TokenSeries) int {
		return cmp.Compare(b.Total.Cached+b.Total.Computed+b.Total.Completion, a.Total.Cached+a.Total.Computed+a.Total.Completion)
	})
	return chart, nil
}

// Quantiles of a time, each within 1 % of a true one; all 0 when Count is 0.
type Quantiles struct {
	Count         int64
	P50, P95, P99 time.Duration
}

// RequestPoint is the requests that ended within a step.
type RequestPoint struct {
	Time time.Time
	Counts
	TTFB, Duration Quantiles // TTFB of those that had a first byte
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
	series, err := s.series(ctx, &q, true)
	if err != nil {
		return chart, err
	}
	chart.Query = q
	for _, line := range series {
		r := RequestSeries{Name: line.name, Points: make([]RequestPoint, q.points())}
		total := sum{}
		for i := range line.sums {
			at := &line.sums[i]
			r.Points[i] = at.point(q.at(i))
			if err := total.join(at); err != nil {
				return RequestChart{}, err
			}
		}
		r.Total = total.point(q.From)
		chart.Series = append(chart.Series, r)
	}
	slices.SortStableFunc(chart.Series, func(a, b RequestSeries) int {
		return cmp.Compare(b.Total.Requests, a.Total.Requests)
	})
	return chart, nil
}

// at is the beginning of a step.
func (q *Query) at(i int) time.Time { return q.From.Add(time.Duration(i) * q.Step) }

func (s *sum) point(at time.Time) RequestPoint {
	return RequestPoint{Time: at, Counts: s.Counts, TTFB: s.ttfb.quantiles(), Duration: s.duration.quantiles()}
}

func (s *sum) join(o *sum) error {
	s.Counts, s.Tokens = s.Counts.plus(o.Counts), s.Tokens.plus(o.Tokens)
	if err := s.ttfb.join(o.ttfb); err != nil {
		return err
	}
	return s.duration.join(o.duration)
}

// join adds another sketch.
func (s *sketch) join(o sketch) error {
	if o.DDSketch == nil {
		return nil
	}
	s.make()
	return s.MergeWith(o.DDSketch)
}

func (s *sketch) quantiles() Quantiles {
	if s.DDSketch == nil || s.IsEmpty() {
		return Quantiles{}
	}
	v, err := s.GetValuesAtQuantiles([]float64{0.5, 0.95, 0.99})
	if err != nil { // of an empty sketch only
		return Quantiles{}
	}
	seconds := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	return Quantiles{Count: int64(s.GetCount()), P50: seconds(v[0]), P95: seconds(v[1]), P99: seconds(v[2])}
}

// line is a member's sums, one for each step.
type line struct {
	name string
	sums []sum
}

// sqlSums has columns, the name of a resolution and a condition on the model
// for %s.
const sqlSums = `SELECT member, step, requests, ok, client_error, engine_error, gateway_error, cancelled,
	placed, stayed, spilled, moved, cached, computed, unmeasured, completion %s
	FROM sums_%s WHERE dimension = ? AND step >= ? AND step < ? %s`

// series reads what a query asks for, with the latencies or without. Without a
// group there is always one line.
func (s *Store) series(ctx context.Context, q *Query, latencies bool) ([]*line, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	db, err := s.reading()
	if err != nil {
		return nil, err
	}
	var ttfb, duration []byte
	columns, more := "", []any{}
	if latencies {
		columns, more = ", ttfb, duration", []any{&ttfb, &duration}
	}
	where, args := db.ofModel(q, int(q.Group.dimension()), q.From.UnixMilli(), q.To.UnixMilli())
	rows, err := db.read.QueryContext(ctx, fmt.Sprintf(sqlSums, columns, resolutionOf(q.Step).name, where), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	lines := map[int64]*line{}
	if q.Group == GroupNone {
		lines[0] = &line{sums: make([]sum, q.points())}
	}
	for rows.Next() {
		var member, step int64
		var r sum
		into := append([]any{&member, &step, &r.Requests, &r.OK, &r.ClientError, &r.EngineError, &r.GatewayError, &r.Cancelled,
			&r.Placed, &r.Stayed, &r.Spilled, &r.Moved, &r.Cached, &r.Computed, &r.Unmeasured, &r.Completion}, more...)
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		l := lines[member]
		if l == nil {
			l = &line{sums: make([]sum, q.points())}
			lines[member] = l
		}
		at := &l.sums[(step-q.From.UnixMilli())/q.Step.Milliseconds()]
		at.Counts, at.Tokens = at.Counts.plus(r.Counts), at.Tokens.plus(r.Tokens)
		if err := at.ttfb.merge(ttfb); err != nil {
			return nil, err
		}
		if err := at.duration.merge(duration); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return db.named(ctx, q.Group, lines)
}

// ofModel adds the condition on a query's model to arguments.
func (db *database) ofModel(q *Query, args ...any) (where string, all []any) {
	if q.Model == "" {
		return "", args
	}
	return "AND model = (SELECT id FROM words WHERE word = ?)", append(args, q.Model)
}

// named puts lines in the order of their members and names them.
func (db *database) named(ctx context.Context, g Group, lines map[int64]*line) ([]*line, error) {
	words := map[int64]string{}
	if g == GroupClient {
		var err error
		if words, err = db.allWords(ctx); err != nil {
			return nil, err
		}
	}
	var all []*line
	for _, member := range slices.Sorted(maps.Keys(lines)) {
		l := lines[member]
		switch g {
		case GroupReplica:
			l.name = ReplicaName(int(member))
		case GroupClient:
			l.name = words[member]
		}
		all = append(all, l)
	}
	return all, nil
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
