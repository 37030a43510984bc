package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"
)

// client runs a real client's command line in a clean environment.
type client struct {
	bin  string
	dir  string // its working folder
	home string
	env  []string
}

// newClient skips the test when the client was not installed.
func newClient(t *testing.T, command string, env ...string) *client {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join("clients", "node_modules", ".bin", command))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Skipf("%s is not installed (run e2e/run, which installs it from npm): %v", command, err)
	}
	return &client{bin: bin, dir: t.TempDir(), home: t.TempDir(), env: env}
}

func (c *client) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Dir = c.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.home, "TERM=dumb"}, c.env...)
	return cmd
}

// run runs the client to its end and returns its standard output.
func (c *client) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := c.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\nstdout: %s\nstderr: %s", filepath.Base(c.bin), args, err, &stdout, &stderr)
	}
	return stdout.String()
}

// converse runs Claude Code in its streaming mode: each text is sent when the
// result of the one before is there.
func (c *client) converse(t *testing.T, texts []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := c.command(ctx, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	events := json.NewDecoder(stdout)
	for _, text := range texts {
		message := map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": text}}
		if err := json.NewEncoder(stdin).Encode(message); err != nil {
			t.Fatal(err)
		}
		for result := false; !result; {
			var event struct {
				Type    string
				IsError bool `json:"is_error"`
			}
			if err := events.Decode(&event); err != nil {
				t.Fatalf("after %q: %v; %s", text, err, &stderr)
			}
			if result = event.Type == "result"; result && event.IsError {
				t.Errorf("%q ended in an error", text)
			}
		}
	}
	stdin.Close()
	io.Copy(io.Discard, stdout)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v; %s", err, &stderr)
	}
}

// lines decodes a client's JSON lines.
func lines(t *testing.T, output string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for _, line := range strings.Split(output, "\n") {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, v)
	}
	return all
}

// byConversation groups the receipts, in order of first appearance.
func byConversation(receipts []wardentest.Decision) [][]wardentest.Decision {
	var groups [][]wardentest.Decision
	at := map[string]int{}
	for _, d := range receipts {
		if d.Conversation == "" {
			continue
		}
		i, seen := at[d.Conversation]
		if !seen {
			i = len(groups)
			at[d.Conversation] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], d)
	}
	return groups
}

// checkHomes asserts that each conversation was placed once, that all its other
// turns stayed, and that the conversations have different homes.
func checkHomes(t *testing.T, groups [][]wardentest.Decision, turns ...int) {
	t.Helper()
	if len(groups) != len(turns) {
		t.Fatalf("%d conversations, want %d: %v", len(groups), len(turns), groups)
	}
	var homes []int
	for i, g := range groups {
		if len(g) != turns[i] {
			t.Errorf("conversation %d has %d requests, want %d", i, len(g), turns[i])
		}
		for n, d := range g {
			want := "stayed"
			if n == 0 {
				want = "placed"
			}
			if d.Reason != want || d.Replica == nil || *d.Replica != *g[0].Replica {
				t.Errorf("conversation %d, request %d: %s on %v, want %s on %v", i, n, d.Reason, deref(d.Replica), want, deref(g[0].Replica))
			}
		}
		if home := g[0].Replica; home != nil {
			if slices.Contains(homes, *home) {
				t.Errorf("conversation %d shares replica %d with another one", i, *home)
			}
			homes = append(homes, *home)
		}
	}
}

func deref(i *int) any {
	if i == nil {
		return "none"
	}
	return *i
}

// checkCached asserts that the last turn of every conversation with several was
// served from the cache but for its new part.
func checkCached(t *testing.T, g *wardentest.Gateway, least float64) {
	t.Helper()
	for _, c := range g.Conversations(t) {
		if c.Turns < 2 {
			continue
		}
		if share := float64(c.CachedTokens) / float64(c.PromptTokens); share < least {
			t.Errorf("conversation %s: %d of %d prompt tokens of the last turn were cached (%.2f), want at least %.2f", c.ID, c.CachedTokens, c.PromptTokens, share, least)
		}
		if c.InFlight != 0 {
			t.Errorf("conversation %s has %d requests in flight after all ended", c.ID, c.InFlight)
		}
	}
}

const simModel = "sim-model"

func claude(t *testing.T, g *wardentest.Gateway) *client {
	return newClient(t, "claude",
		"ANTHROPIC_BASE_URL="+g.URL, "ANTHROPIC_AUTH_TOKEN=dummy",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1")
}

// Two conversations of three turns with a tool call, the second one resumed from
// the command line for each turn.
func TestClaudeCode(t *testing.T) {
	g := warden.Gateway(t, warden.Sim(t, 1, "--replicas", "4", "--model", simModel))
	c := claude(t, g)

	c.converse(t, []string{`first question [[tool Bash {"command":"echo hi","description":"say hi"}]]`, "second question", "third question"},
		"-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash")

	first := lines(t, c.run(t, "", "-p", `another opening [[tool Bash {"command":"echo hi","description":"say hi"}]]`, "--output-format", "json", "--allowedTools", "Bash"))
	id := first[len(first)-1]["session_id"].(string)
	c.run(t, "", "-p", "second question", "--resume", id, "--output-format", "json")
	last := lines(t, c.run(t, "", "-p", "third question", "--resume", id, "--output-format", "json"))
	if last[len(last)-1]["is_error"] != false {
		t.Errorf("Claude Code reports %v", last)
	}

	// A tool call makes two requests of a turn.
	checkHomes(t, byConversation(g.Decisions(t)), 4, 4)
	checkCached(t, g, 0.9)
	for _, conv := range g.Conversations(t) {
		if conv.Source != "x-claude-code-session-id" || conv.Client != "claude-cli" {
			t.Errorf("conversation %s is known by %q of %q", conv.ID, conv.Source, conv.Client)
		}
	}
}

// A restart of the gateway in the middle of a conversation, by kill -9, must not
// move it.
func TestClaudeCodeOverAKilledGateway(t *testing.T) {
	engines := warden.Sim(t, 1, "--replicas", "4", "--model", simModel)
	data := t.TempDir()
	g := warden.Gateway(t, engines, "--data", data)
	c := claude(t, g)
	var ids []string
	for i := range 3 {
		out := lines(t, c.run(t, "", "-p", fmt.Sprintf("opening %d", i), "--output-format", "json"))
		ids = append(ids, out[len(out)-1]["session_id"].(string))
	}
	homes := map[string]int{}
	for _, conv := range g.Conversations(t) {
		homes[conv.ID] = *conv.Home
	}
	<-time.After(1500 * time.Millisecond) // what a kill may cost is one second
	g.Kill()

	g = warden.Gateway(t, engines, "--data", data)
	c2 := claude(t, g)
	c2.home, c2.dir = c.home, c.dir
	for _, id := range ids {
		c2.run(t, "", "-p", "second question", "--resume", id, "--output-format", "json")
	}
	for _, d := range g.Decisions(t) {
		if d.Conversation != "" && (d.Reason != "stayed" || *d.Replica != homes[d.Conversation]) {
			t.Errorf("conversation %s: %s on %v after the restart, its home is %d", d.Conversation, d.Reason, deref(d.Replica), homes[d.Conversation])
		}
	}
	checkCached(t, g, 0.9)
}

func TestCodex(t *testing.T) {
	for name, sim := range map[string]struct {
		servers int
		args    []string
	}{
		"the engine honours the rank": {1, []string{"--replicas", "4", "--responses-rank", "--engine-version", "0.33.0"}},
		"a server per replica":        {4, []string{"--replicas", "4", "--ports"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := warden.Gateway(t, warden.Sim(t, sim.servers, append(sim.args, "--model", simModel)...))
			codexConversations(t, g)
			checkHomes(t, byConversation(g.Decisions(t)), 4, 4)
			checkCached(t, g, 0.8)
		})
	}
}

// Up to vLLM 0.32 the engine ignores the rank on Codex's only route: nothing may
// be shown as sticky that is not.
func TestCodexWhereTheEngineIgnoresTheRank(t *testing.T) {
	g := warden.Gateway(t, warden.Sim(t, 1, "--replicas", "4", "--model", simModel))
	codexConversations(t, g)
	decisions := g.Decisions(t)
	if len(decisions) == 0 {
		t.Fatal("no decisions")
	}
	for _, d := range decisions {
		if d.Reason != "engine" || d.Replica != nil {
			t.Errorf("%s on %v, want the reason engine and no replica", d.Reason, deref(d.Replica))
		}
	}
	m := g.Model(t, simModel)
	if m.Sticky != nil || m.InFlight != 0 {
		t.Errorf("sticky %v, in flight %d; want none and 0", m.Sticky, m.InFlight)
	}
}

// codexConversations runs two conversations of three turns with a tool call, each
// turn in a process of its own.
func codexConversations(t *testing.T, g *wardentest.Gateway) {
	t.Helper()
	c := newClient(t, "codex", "OPENAI_API_KEY=dummy")
	config := fmt.Sprintf("model = %q\nmodel_provider = \"warden\"\n\n[model_providers.warden]\nname = \"LM Warden\"\nbase_url = \"%s/v1\"\nwire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n", simModel, g.URL)
	if err := os.Mkdir(filepath.Join(c.home, ".codex"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.home, ".codex", "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"}
	for i := range 2 {
		out := lines(t, c.run(t, "", slices.Concat([]string{"exec"}, flags, []string{fmt.Sprintf(`opening %d [[tool exec_command {"cmd":"echo hi"}]]`, i)})...))
		id := out[0]["thread_id"].(string)
		if !slices.ContainsFunc(out, func(e map[string]any) bool {
			item, _ := e["item"].(map[string]any)
			return item["type"] == "command_execution" && item["status"] == "completed"
		}) {
			t.Errorf("Codex ran no command: %v", out)
		}
		for _, text := range []string{"second question", "third question"} {
			c.run(t, "", slices.Concat([]string{"exec", "resume", id}, flags, []string{text})...)
		}
	}
}

func TestOpencode(t *testing.T) {
	g := warden.Gateway(t, warden.Sim(t, 1, "--replicas", "4", "--model", simModel))
	c := newClient(t, "opencode")
	config := fmt.Sprintf(`{"$schema":"https://opencode.ai/config.json","provider":{"warden":{"npm":"@ai-sdk/openai-compatible","name":"LM Warden","options":{"baseURL":"%s/v1","apiKey":"dummy"},"models":{%q:{"name":"sim"}}}}}`, g.URL, simModel)
	if err := os.WriteFile(filepath.Join(c.dir, "opencode.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		// From standard input, since opencode quotes what is in its arguments.
		opening := fmt.Sprintf(`opening %d [[tool bash {"command":"echo hi","description":"say hi"}]]`, i)
		out := lines(t, c.run(t, opening, "run", "--format", "json", "--model", "warden/"+simModel))
		id := out[0]["sessionID"].(string)
		if !slices.ContainsFunc(out, func(e map[string]any) bool { return e["type"] == "tool_use" }) {
			t.Errorf("opencode used no tool: %v", out)
		}
		for _, text := range []string{"second question", "third question"} {
			c.run(t, "", "run", "--session", id, "--model", "warden/"+simModel, text)
		}
	}
	checkHomes(t, byConversation(g.Decisions(t)), 4, 4)
	checkCached(t, g, 0.8)
	unbound := 0
	for _, d := range g.Decisions(t) {
		if d.Reason == "unbound" {
			unbound++
		}
	}
	if unbound == 0 {
		t.Error("opencode's title calls were not seen as unbound")
	}
}

// The SDKs send no id; their conversations are recognised by the history.
func TestSDKs(t *testing.T) {
	g := warden.Gateway(t, warden.Sim(t, 1, "--replicas", "4", "--model", simModel))
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("node is not installed: %v", err)
	}
	if _, err := os.Stat("clients/node_modules/openai"); err != nil {
		t.Skipf("the SDKs are not installed (run e2e/run, which installs them from npm): %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, sdk := range []string{"openai", "anthropic"} {
		cmd := exec.CommandContext(ctx, node, "clients/converse.mjs", sdk, g.URL, simModel)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", sdk, err, out)
		}
	}
	checkHomes(t, byConversation(g.Decisions(t)), 3, 3, 3, 3)
	checkCached(t, g, 0.7)
}

// What the gateway sends a stream that waits for a replica, ping events and
// comment lines, is nothing to the SDKs.
func TestSDKsWaitForAReplica(t *testing.T) {
	engine := warden.Sim(t, 1, "--replicas", "1", "--model", simModel, "--kv-tokens", "10000", "--max-model-len", "9000")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("node is not installed: %v", err)
	}
	if _, err := os.Stat("clients/node_modules/openai"); err != nil {
		t.Skipf("the SDKs are not installed (run e2e/run, which installs them from npm): %v", err)
	}
	file := filepath.Join(t.TempDir(), "warden.yaml")
	config := fmt.Sprintf("models: [{policy: patience, engines: [{url: %q}]}]\nlimits: {keep_alive_after: 20ms}\n", engine[0])
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	g := warden.Gateway(t, nil, "--config", file)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, sdk := range []string{"openai", "anthropic"} {
		cmd := exec.CommandContext(ctx, node, "clients/wait.mjs", sdk, g.URL, simModel)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", sdk, err, out)
		}
	}
	waited := map[string]int{}
	for _, line := range lines(t, g.Log()) {
		if ms, _ := line["waited_ms"].(float64); line["msg"] == "request" && ms >= 20 {
			waited[fmt.Sprint(line["path"])]++
		}
	}
	if waited["/v1/chat/completions"] == 0 || waited["/v1/messages"] == 0 {
		t.Errorf("requests that waited for a keep-alive: %v", waited)
	}
}
