package stats

import (
	"database/sql"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"
)

// row is a statement with its arguments.
type row struct {
	query string
	args  []any
}

// olden writes a file as the release with a schema did.
func olden(t *testing.T, schema int64, rows ...row) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "history.db")
	db, err := sql.Open("sqlite", dsn(path, false))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if _, err := db.Exec(r.query, r.args...); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// A history of the first schema is kept, and goes on.
func TestMigrationOfTheFirstSchema(t *testing.T) {
	old := turn(noon.Add(-time.Minute))
	old.Cause, old.Reread, old.Changed = "changed-prompt", 90, Change{Part: "message", Message: 4, Byte: 1234, Offset: -1}
	old.TTFB = time.Second
	var k sketch
	k.add(old.TTFB)
	ms := old.Time.UnixMilli()
	path := olden(t, 1,
		row{`INSERT INTO words VALUES (1,'qwen'),(2,'claude-cli'),(3,'stayed'),(4,''),(5,'ok'),(6,'changed-prompt'),(7,'message')`, nil},
		row{`INSERT INTO requests (ended, model, replica, conversation, parent, client, reason, why, outcome, ttfb, duration,
			prompt, cached, completion, cause, reread, part, message, byte) VALUES (?,1,2,?,?,2,3,4,5,?,?,1000,800,50,6,90,7,4,1234)`, []any{
			ms, conversationNumber(old.Conversation), conversationNumber(old.Parent), old.TTFB.Microseconds(), old.Duration.Microseconds()}},
		row{`INSERT INTO sums_1m VALUES (0,?,1,0, 1,1,0,0,0,0, 0,1,0,0, 800,200,0,50, ?,?)`, []any{
			floorMilli(ms, time.Minute), k.encoded(), k.encoded()}},
	)
	s := open(t, path)
	held := turn(noon.Add(-time.Minute))
	held.Waited, held.TTFB = 3*time.Second, 4*time.Second
	add(t, s, held)
	turns, _, err := s.Turns(t.Context(), old.Conversation, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Turn{{2, held}, {1, old}}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	chart, err := s.Requests(t.Context(), query(t, "range=1h&step=1m"))
	if err != nil {
		t.Fatal(err)
	}
	total := chart.Series[0].Total
	if w := total.Waited; total.Requests != 2 || total.TTFB.Count != 2 || w.Count != 1 || w.P50 < 2970*time.Millisecond || w.P95 > 3030*time.Millisecond {
		t.Errorf("%+v", total)
	}
}
