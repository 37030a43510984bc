package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

type schema = map[string]any

func described(t *testing.T) schema {
	t.Helper()
	var doc schema
	if err := json.Unmarshal(description, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestEveryRouteIsDescribed(t *testing.T) {
	var served, said []string
	for _, r := range newHandler(t, nil, nil).table() {
		for _, m := range r.methods {
			if strings.HasPrefix(r.path, "/api/") {
				served = append(served, m+" "+r.path)
			}
		}
	}
	for path, operations := range described(t)["paths"].(schema) {
		for method, o := range operations.(schema) {
			said = append(said, strings.ToUpper(method)+" "+path)
			var names []string
			for _, p := range list(o.(schema)["parameters"]) {
				if p.(schema)["in"] == "path" {
					names = append(names, "{"+p.(schema)["name"].(string)+"}")
				}
			}
			if n := strings.Count(path, "{"); n != len(names) || slices.ContainsFunc(names, func(p string) bool { return !strings.Contains(path, p) }) {
				t.Errorf("%s %s describes the path parameters %v", method, path, names)
			}
		}
	}
	slices.Sort(served)
	slices.Sort(said)
	if !slices.Equal(served, said) {
		t.Errorf("served\n%s\ndescribed\n%s", strings.Join(served, "\n"), strings.Join(said, "\n"))
	}
}

// Every answer is held against its schema: a field that is missing, surplus or of
// another kind is an error.
func TestAnswersAreAsDescribed(t *testing.T) {
	p := box()
	table := talk(p)
	h := newHandler(t, table, []Pool{p}, full(t))
	id := table[0].Name
	for _, c := range []struct{ method, path, target, body string }{
		{"get", "/api/overview", "", ""},
		{"get", "/api/models", "", ""},
		{"get", "/api/models/{name}", "/api/models/qwen3-4b-dp4", ""},
		{"patch", "/api/models/{name}", "/api/models/qwen3-4b-dp4", `{"spill_threshold": "auto"}`},
		{"post", "/api/models/{name}/replicas/{index}/drain", "/api/models/qwen3-4b-dp4/replicas/0/drain", ""},
		{"post", "/api/models/{name}/replicas/{index}/resume", "/api/models/qwen3-4b-dp4/replicas/0/resume", ""},
		{"get", "/api/decisions", "", ""},
		{"get", "/api/conversations", "", ""},
		{"get", "/api/conversations/{id}", "/api/conversations/" + id, ""},
		{"post", "/api/conversations/{id}/release", "/api/conversations/" + id + "/release", ""},
		{"post", "/api/conversations/{id}/move", "/api/conversations/" + id + "/move", `{"replica": 1}`},
		{"post", "/api/conversations/{id}/cancel", "/api/conversations/" + id + "/cancel", ""},
		{"get", "/api/stats/tokens", "", ""},
		{"get", "/api/stats/requests", "/api/stats/requests?group=client", ""},
		{"get", "/api/stats/moves", "", ""},
		{"get", "/api/stats/causes", "", ""},
		{"get", "/api/stats/replicas", "", ""},
		{"get", "/api/benchmarks", "", ""},
		{"get", "/api/benchmarks", "/api/benchmarks?run=before&run=after", ""},
		{"get", "/api/benchmarks/{run}", "/api/benchmarks/before", ""},
		{"get", "/api/settings", "", ""},
		{"post", "/api/settings/reload", "", ""},
		{"get", "/api/openapi.json", "", ""},
	} {
		target := c.target
		if target == "" {
			target = c.path
		}
		w := call(h, strings.ToUpper(c.method), target, c.body)
		if w.Code != 200 {
			t.Errorf("%s %s: %d %s", c.method, target, w.Code, w.Body)
			continue
		}
		var got any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		doc := described(t)
		operation, ok := doc["paths"].(schema)[c.path].(schema)[c.method].(schema)
		if !ok {
			t.Errorf("%s %s is not described", c.method, c.path)
			continue
		}
		s := operation["responses"].(schema)["200"].(schema)["content"].(schema)["application/json"].(schema)["schema"].(schema)
		for _, problem := range check(doc, s, got, target) {
			t.Error(problem)
		}
	}
	w := call(h, "GET", "/api/models/none", "")
	var got any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, problem := range check(described(t), schema{"$ref": "#/components/schemas/Error"}, got, "an error") {
		t.Error(problem)
	}
}

// check is as much of JSON Schema as the description uses.
func check(doc, s schema, v any, at string) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, at+": "+fmt.Sprintf(format, args...))
	}
	if ref, ok := s["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		target, ok := doc["components"].(schema)["schemas"].(schema)[name].(schema)
		if !ok {
			return append(problems, at+": there is no schema "+name)
		}
		return check(doc, target, v, at)
	}
	if choices := list(s["oneOf"]); choices != nil {
		var all []string
		for _, c := range choices {
			found := check(doc, c.(schema), v, at)
			if len(found) == 0 {
				return nil
			}
			all = append(all, found...)
		}
		return all
	}
	if allowed := list(s["enum"]); allowed != nil && !slices.Contains(allowed, v) {
		bad("%v is not one of %v", v, allowed)
	}
	if kinds := list(s["type"]); kinds != nil {
		if !slices.Contains(kinds, any(kind(v))) && !(kind(v) == "integer" && slices.Contains(kinds, any("number"))) {
			bad("a %s, want %v", kind(v), kinds)
		}
	}
	switch v := v.(type) {
	case []any:
		if items, ok := s["items"].(schema); ok {
			for i, item := range v {
				problems = append(problems, check(doc, items, item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		}
	case schema:
		properties, _ := s["properties"].(schema)
		for _, name := range list(s["required"]) {
			if _, ok := v[name.(string)]; !ok {
				bad("%s is missing", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			switch more := s["additionalProperties"].(type) {
			case schema:
				problems = append(problems, check(doc, more, v[name], at+"."+name)...)
			case bool:
				if property, ok := properties[name].(schema); ok {
					problems = append(problems, check(doc, property, v[name], at+"."+name)...)
				} else if !more {
					bad("%s is not described", name)
				}
			}
		}
	}
	return problems
}

func list(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		return v
	}
	return []any{v}
}

func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	}
	return "object"
}
