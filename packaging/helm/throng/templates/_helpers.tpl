{{- define "throng.labels" -}}
app.kubernetes.io/name: throng
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "throng.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}
{{- define "throng.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
