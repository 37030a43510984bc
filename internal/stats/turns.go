package stats

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Turn is one request as it is kept.
type Turn struct {
	// ID grows with each request.
	ID int64
	Record
}

const (
	defaultTurns = 100
	maxTurns     = 1000
)

// sqlTurns has a condition for %s.
const sqlTurns = `SELECT r.id, ended, m.word, replica, coalesce(came_from, -2), conversation, parent, cl.word, re.word, wh.word, ou.word,
	coalesce(ttfb, 0), duration, coalesce(prompt, -1), coalesce(cached, -1), coalesce(completion, -1),
	coalesce(ca.word, ''), coalesce(reread, 0), coalesce(pa.word, ''), coalesce(message, 0), coalesce(byte, CASE WHEN part IS NULL THEN 0 ELSE -1 END),
	coalesce(waited, 0), coalesce(change_offset, CASE WHEN part IS NULL THEN 0 ELSE -1 END), coalesce(change_within, 0)
	FROM requests r
	JOIN words m ON m.id = r.model JOIN words cl ON cl.id = r.client JOIN words re ON re.id = r.reason
	JOIN words wh ON wh.id = r.why JOIN words ou ON ou.id = r.outcome
	LEFT JOIN words ca ON ca.id = r.cause LEFT JOIN words pa ON pa.id = r.part
	WHERE %s LIMIT ?`

// Turns is a page of a conversation's requests, the newest first. Limit is 1 to
// 1000, 0 for 100; before is where the last page ended, 0 for the first. next is 0
// after the last page. A name that no conversation can have has no turns.
func (s *Store) Turns(ctx context.Context, conversation string, limit int, before int64) (page []Turn, next int64, err error) {
	limit = cmp.Or(limit, defaultTurns)
	if limit < 1 || limit > maxTurns {
		return nil, 0, &QueryError{"limit", fmt.Sprint(limit), fmt.Sprintf("must be 1 to %d", maxTurns)}
	}
	if before < 0 {
		return nil, 0, &QueryError{"cursor", fmt.Sprint(before), "not one that this list gave"}
	}
	db, err := s.reading()
	if err != nil {
		return nil, 0, err
	}
	number := conversationNumber(conversation)
	if number == nil {
		return nil, 0, nil
	}
	where, args := "conversation = ? ORDER BY r.id DESC", []any{number}
	if before > 0 {
		where, args = "conversation = ? AND r.id < ? ORDER BY r.id DESC", []any{number, before}
	}
	page, err = db.turns(ctx, where, append(args, limit+1)...)
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].ID
	}
	return page, next, err
}

// Recent is the newest requests of a model, or of all when it is empty, the newest
// first: at most n (1 to 1000) of the last hour.
func (s *Store) Recent(ctx context.Context, model string, n int) ([]Turn, error) {
	if n < 1 || n > maxTurns {
		return nil, &QueryError{"limit", fmt.Sprint(n), fmt.Sprintf("must be 1 to %d", maxTurns)}
	}
	db, err := s.reading()
	if err != nil {
		return nil, err
	}
	q := Query{Model: model}
	where, args := db.ofModel(&q, s.o.Now().Add(-time.Hour).UnixMilli())
	return db.turns(ctx, "ended >= ? "+where+" ORDER BY ended DESC, r.id DESC", append(args, n)...)
}

func (db *database) turns(ctx context.Context, where string, args ...any) ([]Turn, error) {
	type turns = []Turn
	return collect(ctx, db.read, nil, func(all turns, row *sql.Rows) (turns, error) {
		t, err := scanTurn(row)
		return append(all, t), err
	}, fmt.Sprintf(sqlTurns, where), args...)
}

func scanTurn(row *sql.Rows) (t Turn, err error) {
	var ended, ttfb, duration, waited int64
	var conversation, parent sql.NullInt64
	err = row.Scan(&t.ID, &ended, &t.Model, &t.Replica, &t.From, &conversation, &parent, &t.Client, &t.Reason, &t.Why, &t.Outcome,
		&ttfb, &duration, &t.Prompt, &t.Cached, &t.Completion, &t.Cause, &t.Reread, &t.Changed.Part, &t.Changed.Message, &t.Changed.Byte,
		&waited, &t.Changed.Offset, &t.Changed.Within)
	t.Time = time.UnixMilli(ended).UTC()
	t.Conversation, t.Parent = conversationName(conversation), conversationName(parent)
	t.TTFB, t.Duration = time.Duration(ttfb)*time.Microsecond, time.Duration(duration)*time.Microsecond
	t.Waited = time.Duration(waited) * time.Microsecond
	return t, err
}

// Client is the sums of one client program.
type Client struct {
	Name string // empty for requests that name none
	Counts
	Tokens
}

// Clients are the sums over a query's range by client, those with most tokens
// first. Its step and group do not matter.
func (s *Store) Clients(ctx context.Context, q Query) ([]Client, error) {
	db, err := s.asked(&q)
	if err != nil {
		return nil, err
	}
	where, args := db.ofModel(&q, ofClient, q.From.UnixMilli(), q.To.UnixMilli())
	type clients = []Client
	return collect(ctx, db.read, nil, func(all clients, row *sql.Rows) (clients, error) {
		var c Client
		err := row.Scan(&c.Name, &c.Requests, &c.OK, &c.ClientError, &c.EngineError, &c.GatewayError, &c.Cancelled,
			&c.Placed, &c.Stayed, &c.Spilled, &c.Moved, &c.Cached, &c.Computed, &c.Unmeasured, &c.Completion)
		return append(all, c), err
	}, fmt.Sprintf(`SELECT word, sum(requests), sum(ok), sum(client_error), sum(engine_error), sum(gateway_error), sum(cancelled),
		sum(placed), sum(stayed), sum(spilled), sum(moved), sum(cached), sum(computed), sum(unmeasured), sum(completion)
		FROM sums_%s JOIN words ON id = member WHERE dimension = ? AND step >= ? AND step < ? %s
		GROUP BY member ORDER BY sum(cached + computed + completion) DESC, word`, resolutionOf(q.Step).name, where), args...)
}

// Shift is requests that left their home.
type Shift struct {
	From, To    int // replicas; NoReplica or EngineChosen where it is none
	Reason, Why string
	Requests    int64
}

// Shifts are the moves and spills of a query's range, the most frequent first. They are counted by 10 minutes;
// those that are partly in the range are in it whole.
func (s *Store) Shifts(ctx context.Context, q Query) ([]Shift, error) {
	db, err := s.asked(&q)
	if err != nil {
		return nil, err
	}
	where, args := db.ofModel(&q, floorMilli(q.From.UnixMilli(), shiftStep), q.To.UnixMilli())
	type shifts = []Shift
	return collect(ctx, db.read, nil, func(all shifts, row *sql.Rows) (shifts, error) {
		var x Shift
		err := row.Scan(&x.From, &x.To, &x.Reason, &x.Why, &x.Requests)
		return append(all, x), err
	}, fmt.Sprintf(`SELECT came_from, replica, re.word, wh.word, sum(requests) FROM shifts
		JOIN words re ON re.id = reason JOIN words wh ON wh.id = why
		WHERE step >= ? AND step < ? %s GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 1, 2, 3, 4`, where), args...)
}

// Ledger is what turns cost that were not cached, by cause.
type Ledger struct {
	Hour    time.Time // its beginning
	Replica int
	Cause   string
	Turns   int64
	Reread  int64 // tokens that had been in a cache and were computed again
}

// Ledger is the turns by hour, replica and cause of a query's range, in this
// order. Hours that are partly in the range are in it whole.
func (s *Store) Ledger(ctx context.Context, q Query) ([]Ledger, error) {
	db, err := s.asked(&q)
	if err != nil {
		return nil, err
	}
	where, args := db.ofModel(&q, floorMilli(q.From.UnixMilli(), time.Hour), q.To.UnixMilli())
	type ledgers = []Ledger
	return collect(ctx, db.read, nil, func(all ledgers, row *sql.Rows) (ledgers, error) {
		var l Ledger
		var step int64
		err := row.Scan(&step, &l.Replica, &l.Cause, &l.Turns, &l.Reread)
		l.Hour = time.UnixMilli(step).UTC()
		return append(all, l), err
	}, fmt.Sprintf(`SELECT step, replica, ca.word, sum(turns), sum(reread) FROM causes JOIN words ca ON ca.id = cause
		WHERE step >= ? AND step < ? %s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, where), args...)
}

// ReplicaPoint is the mean state of a replica over the samples of a step.
type ReplicaPoint struct {
	Time                    time.Time
	InFlight, Conversations float64
	// Running, Waiting and KVPercent (0 to 100) are the engine's own, -1 when not
	// measured.
	Running, Waiting, KVPercent float64
}

// ReplicaSeries is one replica of a model. Its points have gaps where there were
// no samples.
type ReplicaSeries struct {
	Model   string
	Replica int
	Points  []ReplicaPoint
}

// Replicas are the states of replicas over a query's range, in the order of model
// and index. The group does not matter.
func (s *Store) Replicas(ctx context.Context, q Query) ([]ReplicaSeries, error) {
	db, err := s.asked(&q)
	if err != nil {
		return nil, err
	}
	step := q.Step.Milliseconds()
	where, args := db.ofModel(&q, step, q.From.UnixMilli(), q.To.UnixMilli())
	type list = []ReplicaSeries
	return collect(ctx, db.read, nil, func(all list, row *sql.Rows) (list, error) {
		var model string
		var replica int
		var at int64
		var n, inFlight, conversations, measured, running, waiting, kvMeasured int64
		var kv float64
		err := row.Scan(&model, &replica, &at, &n, &inFlight, &conversations, &measured, &running, &waiting, &kvMeasured, &kv)
		if len(all) == 0 || all[len(all)-1].Model != model || all[len(all)-1].Replica != replica {
			all = append(all, ReplicaSeries{Model: model, Replica: replica})
		}
		last := &all[len(all)-1]
		last.Points = append(last.Points, ReplicaPoint{
			Time:     time.UnixMilli(at * step).UTC(),
			InFlight: mean(float64(inFlight), n), Conversations: mean(float64(conversations), n),
			Running: mean(float64(running), measured), Waiting: mean(float64(waiting), measured),
			KVPercent: mean(100*kv, kvMeasured),
		})
		return all, err
	}, fmt.Sprintf(`SELECT m.word, replica, step / ? AS at, sum(samples), sum(in_flight), sum(conversations),
		sum(measured), sum(running), sum(waiting), sum(kv_measured), sum(kv)
		FROM samples_%s JOIN words m ON m.id = model
		WHERE step >= ? AND step < ? %s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, resolutionOf(q.Step).name, where), args...)
}

// mean is -1 when nothing was measured.
func mean(sum float64, n int64) float64 {
	if n == 0 {
		return -1
	}
	return sum / float64(n)
}

// collect folds the rows of a query into a value.
func collect[T any](ctx context.Context, db *sql.DB, all T, add func(T, *sql.Rows) (T, error), query string, args ...any) (T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return all, err
	}
	defer rows.Close()
	for rows.Next() {
		if all, err = add(all, rows); err != nil {
			return all, err
		}
	}
	return all, rows.Err()
}
