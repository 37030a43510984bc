package results

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lmwarden/internal/typedoc"
)

// What outsiders are told of the files is made from the types and their comments:
//
//	UPDATE_DOCS=1 go test -run Documented ./internal/bench/results
func TestFormIsDocumented(t *testing.T) {
	says := typedoc.Comments(t, "*.go")
	for path, kind := range map[string]reflect.Type{
		"../../../docs/results.schema.json":  reflect.TypeFor[Results](),
		"../../../docs/requests.schema.json": reflect.TypeFor[Request](),
	} {
		s := schemaOf(kind, says)
		s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		data, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		typedoc.Current(t, path, append(data, '\n'))
	}

	typedoc.CurrentPart(t, "../../../docs/results.md",
		"<!-- made from the types by internal/bench/results/schema_test.go -->\n", "<!-- end -->\n", columnTable(t, says))
}

func columnTable(t *testing.T, says map[string]string) string {
	fields := map[string]string{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Measures]()) {
		fields[f.Tag.Get("json")] = says["Measures."+f.Name]
	}
	var b strings.Builder
	b.WriteString("\n| name | in tables | better | is |\n| --- | --- | --- | --- |\n")
	for _, c := range Columns() {
		better := map[Direction]string{Higher: "higher", Lower: "lower", Neither: ""}[c.Better]
		if fields[c.Name] == "" {
			t.Errorf("nothing says what %s is", c.Name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.Name, c.Title, better, fields[c.Name])
	}
	return b.String() + "\n"
}

// schemaOf is the JSON schema of a type as package json writes it.
func schemaOf(kind reflect.Type, says map[string]string) map[string]any {
	switch kind.Kind() {
	case reflect.Pointer:
		s := schemaOf(kind.Elem(), says)
		s["type"] = []any{s["type"], "null"}
		return s
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(kind.Elem(), says)}
	case reflect.Map:
		return map[string]any{"type": "object"}
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		for _, f := range reflect.VisibleFields(kind) {
			name := f.Tag.Get("json")
			if f.Anonymous || name == "-" {
				continue
			}
			s := schemaOf(f.Type, says)
			owner := kind
			if len(f.Index) > 1 {
				owner = kind.FieldByIndex(f.Index[:len(f.Index)-1]).Type
			}
			if text := says[owner.Name()+"."+f.Name]; text != "" {
				s["description"] = text
			}
			properties[name] = s
			required = append(required, name)
		}
		slices.Sort(required)
		return map[string]any{"type": "object", "properties": properties, "required": required}
	case reflect.String:
		if kind == reflect.TypeFor[End]() {
			return map[string]any{"type": "string", "enum": []any{Finished, Cut, Failed}}
		}
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	}
	panic(fmt.Sprintf("no schema for %v", kind))
}

// What is written obeys the published schema, and what is not of the form does
// not.
func TestFilesObeyTheSchema(t *testing.T) {
	schema := func(name string) map[string]any {
		data, err := os.ReadFile("../../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return decoded(t, data)
	}
	data, err := sample().JSON()
	if err != nil {
		t.Fatal(err)
	}
	if bad := disobeys(schema("results.schema.json"), decoded(t, data), "results"); bad != "" {
		t.Error(bad)
	}
	for from, to := range map[string]string{`"schema": 1`: `"schema": 1.5`, `"name": "off"`: `"name": null`, `"arms": [`: `"arm": [`, `"moves": null`: `"moves": "0"`} {
		if broken := strings.Replace(string(data), from, to, 1); disobeys(schema("results.schema.json"), decoded(t, []byte(broken)), "") == "" {
			t.Errorf("the schema allows %s", to)
		}
	}
	turn := 3
	var b bytes.Buffer
	if err := WriteRequests(&b, []Request{{Arm: "off", Turn: &turn, TTFB: figure(0.5), End: Cut}}); err != nil {
		t.Fatal(err)
	}
	if bad := disobeys(schema("requests.schema.json"), decoded(t, b.Bytes()), "request"); bad != "" {
		t.Error(bad)
	}
	if disobeys(schema("requests.schema.json"), decoded(t, bytes.Replace(b.Bytes(), []byte(`"cut"`), []byte(`"ended"`), 1)), "") == "" {
		t.Error("the schema allows another end")
	}
}

func decoded(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// disobeys says where a value breaks a schema of the kind that schemaOf makes.
func disobeys(schema map[string]any, v any, at string) string {
	types, many := schema["type"].([]any)
	if !many {
		types = []any{schema["type"]}
	}
	is := "null"
	switch v := v.(type) {
	case string:
		is = "string"
	case float64:
		if is = "number"; v == float64(int64(v)) && slices.Contains(types, any("integer")) {
			is = "integer"
		}
	case []any:
		is = "array"
		for i, item := range v {
			if bad := disobeys(schema["items"].(map[string]any), item, fmt.Sprintf("%s[%d]", at, i)); bad != "" {
				return bad
			}
		}
	case map[string]any:
		is = "object"
		properties, _ := schema["properties"].(map[string]any)
		for name, value := range v {
			if p, ok := properties[name].(map[string]any); ok {
				if bad := disobeys(p, value, at+"."+name); bad != "" {
					return bad
				}
			}
		}
		if required, ok := schema["required"].([]any); ok {
			for _, name := range required {
				if _, there := v[name.(string)]; !there {
					return at + " has no " + name.(string)
				}
			}
		}
	}
	if !slices.Contains(types, any(is)) {
		return fmt.Sprintf("%s is of type %s, the schema says %v", at, is, types)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		return fmt.Sprintf("%s is %v, the schema says %v", at, v, enum)
	}
	return ""
}
