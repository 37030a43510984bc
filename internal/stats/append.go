package stats

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// statements are those of the writer, prepared once per open file.
type statements struct {
	word, request, requests, shift, cause *sql.Stmt
	sums                                  [len(resolutions)]struct{ find, add, sample *sql.Stmt }
}

// rows is how many requests one statement writes while there are as many, which
// takes two thirds of the time that as many statements do.
const rows = 32

const (
	sqlWord = `INSERT INTO words (word) VALUES (?) RETURNING id`
	// A row that fails leaves those before it to the end of the transaction, so that
	// SQLite need not note how to take them back.
	sqlRequest = `INSERT OR FAIL INTO requests (ended, model, replica, came_from, conversation, parent, client, reason, why, outcome,
		ttfb, duration, prompt, cached, completion, cause, reread, part, message, byte,
		waited, change_offset, change_within)
		VALUES ` + sqlRow
	sqlRow   = `(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`
	sqlShift = `INSERT INTO shifts VALUES (?,?,?,?,?,?,?)
		ON CONFLICT DO UPDATE SET requests = requests + excluded.requests`
	sqlCause = `INSERT INTO causes VALUES (?,?,?,?,?,?)
		ON CONFLICT DO UPDATE SET turns = turns + excluded.turns, reread = reread + excluded.reread`

	// Those have the name of a resolution for %s.
	sqlFind = `SELECT ttfb, duration, waited FROM sums_%s WHERE dimension = ? AND step = ? AND model = ? AND member = ?`
	sqlAdd  = `INSERT INTO sums_%s VALUES (?,?,?,?, ?,?,?,?,?,?, ?,?,?,?, ?,?,?,?, ?,?,?)
		ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, ok = ok + excluded.ok,
		client_error = client_error + excluded.client_error, engine_error = engine_error + excluded.engine_error,
		gateway_error = gateway_error + excluded.gateway_error, cancelled = cancelled + excluded.cancelled,
		placed = placed + excluded.placed, stayed = stayed + excluded.stayed,
		spilled = spilled + excluded.spilled, moved = moved + excluded.moved,
		cached = cached + excluded.cached, computed = computed + excluded.computed,
		unmeasured = unmeasured + excluded.unmeasured, completion = completion + excluded.completion,
		ttfb = excluded.ttfb, duration = excluded.duration, waited = excluded.waited`
	sqlSample = `INSERT INTO samples_%s VALUES (?,?,?, ?,?,?, ?,?,?, ?,?)
		ON CONFLICT DO UPDATE SET samples = samples + excluded.samples, in_flight = in_flight + excluded.in_flight,
		conversations = conversations + excluded.conversations, measured = measured + excluded.measured,
		running = running + excluded.running, waiting = waiting + excluded.waiting,
		kv_measured = kv_measured + excluded.kv_measured, kv = kv + excluded.kv`
)

// prepare parses the writer's statements. They end with the database.
func prepare(ctx context.Context, db *sql.DB) (st statements, err error) {
	stmt := func(query string) *sql.Stmt {
		s, e := db.PrepareContext(ctx, query)
		err = errors.Join(err, e)
		return s
	}
	st.word, st.shift, st.cause = stmt(sqlWord), stmt(sqlShift), stmt(sqlCause)
	st.request, st.requests = stmt(sqlRequest), stmt(sqlRequest+strings.Repeat(","+sqlRow, rows-1))
	for i, r := range resolutions {
		at := &st.sums[i]
		at.find, at.add, at.sample = stmt(fmt.Sprintf(sqlFind, r.name)), stmt(fmt.Sprintf(sqlAdd, r.name)), stmt(fmt.Sprintf(sqlSample, r.name))
	}
	return st, err
}

// appending is one transaction of the writer.
type appending struct {
	ctx   context.Context
	tx    *sql.Tx
	st    *statements
	words map[string]int64 // of the database
	fresh map[string]int64 // that this transaction made
}

// append writes a batch, whole or not at all.
func (db *database) append(ctx context.Context, b *batch) (err error) {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreDone(tx.Rollback()))
		}
	}()
	a := appending{ctx, tx, &db.insert, db.words, map[string]int64{}}
	if err := a.requests(b.records); err != nil {
		return err
	}
	if err := a.sums(rollUp(b.records)); err != nil {
		return err
	}
	if err := a.asides(asides(b.records)); err != nil {
		return err
	}
	if err := a.samples(rollUpSamples(b.samples)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	for w, id := range a.fresh {
		db.words[w] = id
	}
	return nil
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

func (a *appending) exec(s *sql.Stmt, args ...any) error {
	_, err := a.tx.StmtContext(a.ctx, s).ExecContext(a.ctx, args...)
	return err
}

// maxWords bounds the words of a file for the sake of clients, who name
// themselves. Those that come later are "other".
const (
	maxWords = 1000
	other    = "other"
)

// word is the number of a word.
func (a *appending) word(w string) (int64, error) {
	if id, ok := a.find(w); ok {
		return id, nil
	}
	w = kept(w)
	var id int64
	if err := a.tx.StmtContext(a.ctx, a.st.word).QueryRowContext(a.ctx, w).Scan(&id); err != nil {
		return 0, err
	}
	a.fresh[w] = id
	return id, nil
}

func (a *appending) find(w string) (id int64, ok bool) {
	for _, words := range [...]map[string]int64{a.words, a.fresh} {
		if id, ok = words[w]; ok {
			return id, true
		}
	}
	if k := kept(w); k != w {
		return a.find(k)
	}
	return 0, false
}

// kept is a word as it is kept.
func kept(w string) string { return strings.ToValidUTF8(w, "\uFFFD") }

func readWords(ctx context.Context, db *sql.DB) (map[string]int64, error) {
	rows, err := db.QueryContext(ctx, `SELECT id, word FROM words`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	words := map[string]int64{}
	for rows.Next() {
		var id int64
		var w string
		if err := rows.Scan(&id, &w); err != nil {
			return nil, err
		}
		words[w] = id
	}
	return words, rows.Err()
}

// numbers looks up several words; the first error stays.
type numbers struct {
	a   *appending
	err error
}

func (n *numbers) of(w string) int64 {
	if n.err != nil {
		return 0
	}
	id, err := n.a.word(w)
	n.err = err
	return id
}

// client is the number of a client's name.
func (n *numbers) client(name string) int64 {
	if _, known := n.a.find(name); !known && len(n.a.words)+len(n.a.fresh) >= maxWords {
		name = other
	}
	return n.of(name)
}

func (a *appending) requests(records []Record) error {
	n := numbers{a: a}
	var args []any
	for len(records) > 0 {
		write, st := records[:1], a.st.request
		if len(records) >= rows {
			write, st = records[:rows], a.st.requests
		}
		records = records[len(write):]
		args = args[:0]
		for i := range write {
			args = n.appendRequest(args, &write[i])
		}
		if n.err != nil {
			return n.err
		}
		if err := a.exec(st, args...); err != nil {
			return err
		}
	}
	return nil
}

// appendRequest appends the columns of a request's row.
func (n *numbers) appendRequest(args []any, r *Record) []any {
	var cause, reread, part, message, at, offset, within, from, ttfb, waited any
	if r.Cause != "" {
		cause, reread = n.of(r.Cause), r.Reread
	}
	if r.Changed.Part != "" {
		part, message, at = n.of(r.Changed.Part), r.Changed.Message, measured(r.Changed.Byte)
		if r.Changed.Offset >= 0 {
			offset, within = r.Changed.Offset, r.Changed.Within
		}
	}
	if r.From >= 0 {
		from = r.From
	}
	if r.TTFB > 0 {
		ttfb = r.TTFB.Microseconds()
	}
	if r.Waited > 0 {
		waited = r.Waited.Microseconds()
	}
	return append(args, r.Time.UnixMilli(), n.of(r.Model), r.Replica, from,
		conversationNumber(r.Conversation), conversationNumber(r.Parent), n.client(r.Client), n.of(r.Reason), n.of(r.Why), n.of(r.Outcome),
		ttfb, r.Duration.Microseconds(), measured(r.Prompt), measured(r.Cached), measured(r.Completion),
		cause, reread, part, message, at, waited, offset, within)
}

// measured is a number for a column that is NULL when it is not known.
func measured(n int64) any {
	if n < 0 {
		return nil
	}
	return n
}

func (a *appending) sums(cells map[cell]*sum) error {
	n := numbers{a: a}
	for c, s := range cells {
		model, member := n.of(c.model), int64(0)
		switch c.dimension {
		case ofReplica:
			member = int64(c.replica)
		case ofClient:
			member = n.client(c.client)
		}
		if n.err != nil {
			return n.err
		}
		st := &a.st.sums[c.resolution]
		var ttfb, duration, waited []byte
		err := a.tx.StmtContext(a.ctx, st.find).QueryRowContext(a.ctx, int(c.dimension), c.step, model, member).Scan(&ttfb, &duration, &waited)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if err := s.merge(ttfb, duration, waited); err != nil {
			return fmt.Errorf("a sum's latencies: %w", err)
		}
		if err := a.exec(st.add, int(c.dimension), c.step, model, member,
			s.Requests, s.OK, s.ClientError, s.EngineError, s.GatewayError, s.Counts.Cancelled,
			s.Placed, s.Stayed, s.Spilled, s.Moved,
			s.Cached, s.Computed, s.Unmeasured, s.Completion, s.ttfb.encoded(), s.duration.encoded(), s.waited.encoded()); err != nil {
			return err
		}
	}
	return nil
}

func (a *appending) asides(shifts map[shift]int64, causes map[blame]blamed) error {
	n := numbers{a: a}
	for s, requests := range shifts {
		model, reason, why := n.of(s.model), n.of(s.reason), n.of(s.why)
		if n.err != nil {
			return n.err
		}
		if err := a.exec(a.st.shift, s.step, model, reason, why, s.from, s.replica, requests); err != nil {
			return err
		}
	}
	for c, b := range causes {
		model, cause := n.of(c.model), n.of(c.cause)
		if n.err != nil {
			return n.err
		}
		if err := a.exec(a.st.cause, c.step, model, c.replica, cause, b.turns, b.reread); err != nil {
			return err
		}
	}
	return nil
}

func (a *appending) samples(cells map[cell]*sampled) error {
	n := numbers{a: a}
	for c, s := range cells {
		model := n.of(c.model)
		if n.err != nil {
			return n.err
		}
		if err := a.exec(a.st.sums[c.resolution].sample, c.step, model, c.replica,
			s.samples, s.inFlight, s.conversations, s.measured, s.running, s.waiting, s.kvMeasured, s.kv); err != nil {
			return err
		}
	}
	return nil
}

// conversationDigits is the length of the hexadecimal part of a conversation's
// name, which is kept as a number.
const conversationDigits = 12

// conversationNumber is a conversation's name as it is kept, NULL for what is
// none.
func conversationNumber(name string) any {
	digits, ok := strings.CutPrefix(name, "c-")
	if !ok || len(digits) != conversationDigits {
		return nil
	}
	b, err := hex.DecodeString("0000" + digits)
	if err != nil {
		return nil
	}
	return int64(binary.BigEndian.Uint64(b))
}

func conversationName(n sql.NullInt64) string {
	if !n.Valid {
		return ""
	}
	return fmt.Sprintf("c-%0*x", conversationDigits, n.Int64)
}
