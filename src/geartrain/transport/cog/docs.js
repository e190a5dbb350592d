// Shows the document that the page names. The key is that of the playground, where the server asks for keys.

const key = sessionStorage.getItem("geartrain-key");
const place = document.getElementById("swagger-ui");
SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  docExpansion: "list",
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (key) request.headers.Authorization = `Bearer ${key}`;
    return request;
  },
});
