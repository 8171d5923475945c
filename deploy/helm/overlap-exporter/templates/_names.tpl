{{- define "overlap-exporter.name" -}}
{{- if contains "overlap-exporter" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-overlap-exporter" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "overlap-exporter.selector" -}}
app.kubernetes.io/name: overlap-exporter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "overlap-exporter.labels" -}}
{{ include "overlap-exporter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "overlap-exporter.image" -}}
{{- $repository := required "image.repository is required: no image is published; build it, push it, and name it here" .Values.image.repository }}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}
{{- else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "overlap-exporter.settings" -}}
{{- $settings := deepCopy .Values.config }}
{{- if .Values.podMapping.enabled }}
{{- $settings = mergeOverwrite $settings (dict "pods" (dict "socket" "/host/pod-resources/kubelet.sock")) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- define "overlap-exporter.priorityClass" -}}
{{- .Values.priorityClass.name | default (include "overlap-exporter.name" .) }}
{{- end }}
