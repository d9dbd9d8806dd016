{{- /* Most objects are written once, in files/, for kustomize and for Helm. */ -}}

{{- /* Render `object` for this release, in `namespace` or in the release's namespace. */ -}}
{{- define "ddp-operator.object" -}}
{{- $metadata := .object.metadata }}
{{- if hasKey $metadata "namespace" }}
  {{- $_ := set $metadata "namespace" (.namespace | default .chart.Release.Namespace) }}
{{- end }}
{{- with .chart.Values.extraLabels }}
  {{- $_ := set $metadata "labels" (merge (dict) ($metadata.labels | default dict) .) }}
{{- end }}
{{- with .chart.Values.extraAnnotations }}
  {{- $_ := set $metadata "annotations" (merge (dict) ($metadata.annotations | default dict) .) }}
{{- end }}
---
{{ toYaml .object }}
{{- end }}

{{- /* Render all objects of `file`. */ -}}
{{- define "ddp-operator.file" -}}
{{- $chart := .chart }}
{{- range splitList "\n---\n" (.chart.Files.Get .file) }}
{{ include "ddp-operator.object" (dict "chart" $chart "object" (fromYaml .)) }}
{{- end }}
{{- end }}

{{- define "ddp-operator.labels" -}}
{{ toYaml (merge (dict "app.kubernetes.io/name" "ddp-operator" "ddp-operator.io/component" "operator") .Values.extraLabels) }}
{{- end }}

{{- define "ddp-operator.image" -}}
{{- $image := .Values.image }}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
{{- if or $image.tag (not $image.digest) }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* Images of side cars that replace the operator's own choice. */ -}}
{{- define "ddp-operator.side-cars" -}}
{{- range $fabric, $image := .Values.sideCars }}
{{- with $image }}
{{ $fabric }}: {{ quote . }}
{{- end }}
{{- end }}
{{- end }}
