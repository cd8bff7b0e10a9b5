// The page of the HTTP API: Swagger UI on this service's own OpenAPI file.

document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);

window.SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null, // would send the file to another server
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
});
