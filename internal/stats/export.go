package stats

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Formats lists the formats of an export.
func Formats() []string { return []string{"csv", "json"} }

// ExportOptions say what to export.
type ExportOptions struct {
	Since  time.Time // zero for all
	Model  string    // empty for all
	Format string    // one of Formats
}

// exportPage is how many requests are read at a time: a long read would keep the
// writer from reusing its log.
const exportPage = 5000

// Export writes the requests of a history file in the order of their ends. The
// gateway may run meanwhile. A JSON export is one array with a request on each
// line. Errors are for people; those of type *QueryError are of the options.
func Export(ctx context.Context, path string, o ExportOptions, w io.Writer) error {
	if !slices.Contains(Formats(), o.Format) {
		return &QueryError{"format", o.Format, "must be " + strings.Join(Formats(), " or ")}
	}
	db, err := openForReading(ctx, path)
	if err != nil {
		return err
	}
	defer db.close()
	if err := db.knowsModel(ctx, o.Model); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	write, end := exporter(out, o.Format)
	q := Query{Model: o.Model}
	ended, id := int64(-1<<62), int64(0)
	if !o.Since.IsZero() {
		ended = o.Since.UnixMilli() - 1
		id = 1<<63 - 1
	}
	for {
		where, args := db.ofModel(&q, ended, id)
		page, err := db.turns(ctx, "(ended, r.id) > (?, ?) "+where+" ORDER BY ended, r.id", append(args, exportPage)...)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for i := range page {
			if err := write(&page[i]); err != nil {
				return err
			}
		}
		if len(page) < exportPage {
			break
		}
		last := &page[len(page)-1]
		ended, id = last.Time.UnixMilli(), last.ID
	}
	return errors.Join(end(), out.Flush())
}

// openForReading opens a file that a gateway has written, and changes nothing.
func openForReading(ctx context.Context, path string) (*database, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%w; a gateway writes it into the folder that --data names", err)
	}
	read, err := sql.Open("sqlite", dsn(path, true))
	if err != nil {
		return nil, err
	}
	db := &database{read: read}
	var version int64
	if err := read.QueryRowContext(ctx, `SELECT max(version_id) FROM goose_db_version`).Scan(&version); err != nil {
		db.close()
		return nil, fmt.Errorf("%s is no history of a gateway: %w", path, err)
	}
	if version != schemaVersion {
		db.close()
		return nil, fmt.Errorf("%s has schema %d, this release reads %d: use the release of the gateway that wrote it", path, version, schemaVersion)
	}
	return db, nil
}

// knowsModel refuses a model that a file has no requests of.
func (db *database) knowsModel(ctx context.Context, model string) error {
	if model == "" {
		return nil
	}
	type names = []string
	models, err := collect(ctx, db.read, nil, func(all names, row *sql.Rows) (names, error) {
		var w string
		err := row.Scan(&w)
		return append(all, w), err
	}, `SELECT DISTINCT word FROM sums_1h JOIN words ON id = model WHERE dimension = 0 AND word <> '' ORDER BY 1`)
	if err != nil || slices.Contains(models, model) {
		return err
	}
	return fmt.Errorf("no request of model %q in the history; its models are: %s", model, strings.Join(models, ", "))
}

// exported is one request in an export. What is not known is null or empty.
type exported struct {
	Time             string   `json:"time"`
	Model            string   `json:"model"`
	Replica          string   `json:"replica"`
	From             *int     `json:"from"`
	Conversation     string   `json:"conversation"`
	Parent           string   `json:"parent"`
	Client           string   `json:"client"`
	Reason           string   `json:"reason"`
	Why              string   `json:"why"`
	Outcome          string   `json:"outcome"`
	TTFB             *float64 `json:"ttfb_ms"`
	Duration         float64  `json:"duration_ms"`
	PromptTokens     *int64   `json:"prompt_tokens"`
	CachedTokens     *int64   `json:"cached_tokens"`
	CompletionTokens *int64   `json:"completion_tokens"`
	Cause            string   `json:"cause"`
	RereadTokens     *int64   `json:"reread_tokens"`
	ChangedPart      string   `json:"changed_part"`
	ChangedMessage   *int     `json:"changed_message"`
	ChangedByte      *int64   `json:"changed_byte"`
	ChangedOffset    *int64   `json:"changed_offset"`
	ChangedWithin    *int64   `json:"changed_within"`
	Waited           float64  `json:"waited_ms"`
}

var exportColumns = []string{
	"time", "model", "replica", "from", "conversation", "parent", "client", "reason", "why", "outcome", "ttfb_ms", "duration_ms",
	"prompt_tokens", "cached_tokens", "completion_tokens", "cause", "reread_tokens", "changed_part", "changed_message", "changed_byte",
	"changed_offset", "changed_within", "waited_ms",
}

func export(t *Turn) exported {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	e := exported{
		Time: t.Time.Format("2006-01-02T15:04:05.000Z"), Model: t.Model, Replica: ReplicaName(t.Replica),
		Conversation: t.Conversation, Parent: t.Parent, Client: t.Client,
		Reason: t.Reason, Why: t.Why, Outcome: t.Outcome, Duration: ms(t.Duration), Waited: ms(t.Waited),
		PromptTokens: known(t.Prompt), CachedTokens: known(t.Cached), CompletionTokens: known(t.Completion),
		Cause: t.Cause, ChangedPart: t.Changed.Part,
	}
	if t.From >= 0 {
		e.From = &t.From
	}
	if t.TTFB > 0 {
		e.TTFB = new(ms(t.TTFB))
	}
	if t.Cause != "" {
		e.RereadTokens = &t.Reread
	}
	if t.Changed.Part != "" {
		e.ChangedByte, e.ChangedOffset = known(t.Changed.Byte), known(t.Changed.Offset)
		if t.Changed.Offset >= 0 {
			e.ChangedWithin = &t.Changed.Within
		}
	}
	if t.Changed.Part == "message" {
		e.ChangedMessage = &t.Changed.Message
	}
	return e
}

func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

// exporter returns a function that writes one request and one that ends the
// export.
func exporter(w *bufio.Writer, format string) (write func(*Turn) error, end func() error) {
	if format == "csv" {
		out := csv.NewWriter(w)
		err := out.Write(exportColumns)
		return func(t *Turn) error { return errors.Join(err, out.Write(export(t).row())) },
			func() error { out.Flush(); return errors.Join(err, out.Error()) }
	}
	open := "[\n"
	write = func(t *Turn) error {
		line, err := json.Marshal(export(t))
		if err != nil {
			return err
		}
		w.WriteString(open) // Flush tells of its error
		open = ",\n"
		_, err = w.Write(line)
		return err
	}
	end = func() error {
		if open == "[\n" {
			w.WriteString("[")
		}
		_, err := w.WriteString("\n]\n")
		return err
	}
	return write, end
}

// row is a request in the order of exportColumns.
func (e exported) row() []string {
	return []string{
		e.Time, e.Model, e.Replica, cellOf(e.From), e.Conversation, e.Parent, e.Client, e.Reason, e.Why, e.Outcome,
		cellOf(e.TTFB), cellOf(&e.Duration), cellOf(e.PromptTokens), cellOf(e.CachedTokens), cellOf(e.CompletionTokens),
		e.Cause, cellOf(e.RereadTokens), e.ChangedPart, cellOf(e.ChangedMessage), cellOf(e.ChangedByte),
		cellOf(e.ChangedOffset), cellOf(e.ChangedWithin), cellOf(&e.Waited),
	}
}

func cellOf[T int | int64 | float64](v *T) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(float64(*v), 'f', -1, 64)
}
