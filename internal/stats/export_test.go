package stats

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func exportOf(t *testing.T, path string, o ExportOptions) string {
	t.Helper()
	var out bytes.Buffer
	if err := Export(t.Context(), path, o, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestExport(t *testing.T) {
	path := inFile(t)
	s := open(t, path)
	whole := turn(noon)
	whole.Waited = 250 * time.Millisecond
	whole.Reason, whole.Why, whole.From, whole.Cause, whole.Reread = "moved", "home down", 1, "changed-prompt", 90
	whole.Changed, whole.TTFB = Change{Part: "message", Message: 4, Byte: 1234, Offset: 640, Within: 64}, 1500*time.Microsecond
	bare := Record{Time: noon.Add(-48 * time.Hour), Model: `a "b", ü`, Replica: NoReplica, From: NoReplica, Outcome: "client_error", Duration: time.Millisecond, Prompt: Unmeasured, Cached: Unmeasured, Completion: Unmeasured}
	add(t, s, whole, bare) // and exported while it is open

	got := exportOf(t, path, ExportOptions{Format: "csv"})
	want := `time,model,replica,from,conversation,parent,client,reason,why,outcome,ttfb_ms,duration_ms,prompt_tokens,cached_tokens,completion_tokens,cause,reread_tokens,changed_part,changed_message,changed_byte,changed_offset,changed_within,waited_ms
2026-10-02T12:00:03.000Z,"a ""b"", ü",none,,,,,,,client_error,,1,,,,,,,,,,,0
2026-10-04T12:00:03.000Z,qwen,2,1,c-71f2a09c4d5e,c-000000000001,claude-cli,moved,home down,ok,1.5,2000,1000,800,50,changed-prompt,90,message,4,1234,640,64,250
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(exportOf(t, path, ExportOptions{Format: "json", Since: noon.Add(-time.Hour)})), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0]["cached_tokens"] != 800.0 || rows[0]["ttfb_ms"] != 1.5 {
		t.Errorf("%v", rows)
	}
	if err := json.Unmarshal([]byte(exportOf(t, path, ExportOptions{Format: "json", Since: noon.Add(time.Hour)})), &rows); err != nil || len(rows) != 0 {
		t.Errorf("%v: %v", rows, err)
	}
	if got := exportOf(t, path, ExportOptions{Format: "csv", Model: bare.Model}); strings.Count(got, "\n") != 2 {
		t.Errorf("one model's: %s", got)
	}
	err := Export(t.Context(), path, ExportOptions{Format: "csv", Model: "qwem"}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), `no request of model "qwem"`) || !strings.Contains(err.Error(), "qwen") {
		t.Errorf("an unknown model: %v", err)
	}
}

// More requests than one read takes, with equal times among them, are exported
// once each; also from a gateway that stopped and from one that was killed.
func TestExportsAreWhole(t *testing.T) {
	path := inFile(t)
	s := open(t, path)
	const n = 2*exportPage + 7
	for i := range n {
		r := turn(noon.Add(time.Duration(i/3) * time.Millisecond))
		r.Prompt = int64(i)
		s.Add(r)
		if i%4000 == 0 {
			add(t, s)
		}
	}
	add(t, s)
	check := func(when, path string) {
		t.Helper()
		rows, err := csv.NewReader(strings.NewReader(exportOf(t, path, ExportOptions{Format: "csv"}))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, row := range rows[1:] {
			seen[row[12]] = true
		}
		if len(rows) != n+1 || len(seen) != n {
			t.Errorf("%s: %d rows, %d requests, want %d", when, len(rows)-1, len(seen), n)
		}
	}
	check("while it runs", path)

	// A kill leaves the file with its log and without a lock.
	killed := filepath.Join(t.TempDir(), "history.db")
	for _, part := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + part)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(killed+part, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("after a kill", killed)
	s.shut()
	check("after a stop", path)
}
